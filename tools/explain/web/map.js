// The tile map: every tile of the scores, and why it is empty, full or mixed.
"use strict";

class TileMap {
  constructor(data) {
    this.map = data.map;
    this.problem = data.problem;
    this.row = 0;
    this.column = 0;
    this.introduce();
    this.draw();
    this.pick(Math.min(this.map.rows - 1, Math.floor(this.map.rows / 2)),
      Math.min(this.map.columns - 1, Math.floor(this.map.columns / 2)));
  }

  introduce() {
    const { map, problem } = this;
    const { empty, full, mixed } = map.counts;
    const tiles = empty + full + mixed;
    const percent = (n) => `${(100 * n / tiles).toFixed(n === 0 || n === tiles ? 0 : 1)} %`;
    const made = problem.made_up_buffers.filter((name) => (map.expression ?? "").includes(name));
    show(byId("map-intro"), `The scores of one head are a matrix of ${textOfCount(problem.seqlen_q)} ` +
      `${problem.seqlen_q === 1 ? "query" : "queries"} by ${textOfCount(problem.seqlen_k)} keys, cut into tiles of ${map.block_q} × ${map.block_k}. ` +
      (map.expression === null ? "There is no mask: every tile is full, and all of them are computed."
        : "Interval arithmetic puts the ranges of a tile into the mask's formula. Where the formula comes " +
          "out false for the whole range the tile is empty and skipped, where it comes out true it is " +
          "full and the mask is not looked at again; only mixed tiles test each element.") +
      (made.length > 0 ? ` What the mask reads from ${made.join(", ")} is made up here.` : ""));
    const entry = (kind, count, words) => html("span", { class: "entry" },
      svg("svg", { class: `swatch ${kind}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
        svg("rect", { width: 16, height: 16, class: `tile ${kind}` })),
      `${words}: ${textOfCount(count)} (${percent(count)})`);
    show(byId("map-legend"), entry("empty", empty, "empty"), entry("full", full, "full"),
      entry("mixed", mixed, "mixed"));
  }

  // What a cell of one or several tiles is.
  kindOf(row, column) {
    const { map } = this;
    const at = row * map.columns + column;
    const tiles = this.span(row, map.tiles_q, map.group_q) * this.span(column, map.tiles_k, map.group_k);
    const empty = map.cells.empty[at];
    const full = map.cells.full[at];
    const kind = empty === tiles ? "empty" : full === tiles ? "full" : "mixed";
    return { kind, tiles, empty, full, mixed: tiles - empty - full };
  }
  span(index, tiles, group) { return Math.min(group, tiles - index * group); }

  draw() {
    const { map } = this;
    // To scale, but for matrices that would be slivers.
    const shape = Math.max(1 / 3, Math.min(3,
      map.rows * map.group_q * map.block_q / (map.columns * map.group_k * map.block_k)));
    const width = shape > 1 ? 1000 / shape : 1000;
    const height = width * shape;
    const size = { x: width / map.columns, y: height / map.rows };
    const least = Math.min(size.x, size.y);
    const root = svg("svg", {
      viewBox: `-1 -1 ${width + 2} ${height + 2}`, class: "tile-map", tabindex: 0, role: "application",
      "aria-label": "Tile map. Arrow keys move from tile to tile.",
    });
    root.append(hatching("map-hatch", Math.max(least / 4, 6)));
    const paths = { empty: "", full: "", mixed: "" };
    const gap = least > 12 ? Math.min(0.06 * least, 4) : 0;
    for (let i = 0; i < map.rows; ++i) {
      for (let j = 0; j < map.columns; ++j) {
        paths[this.kindOf(i, j).kind] +=
          `M${j * size.x + gap / 2} ${i * size.y + gap / 2}h${size.x - gap}v${size.y - gap}h${gap - size.x}z`;
      }
    }
    for (const [kind, d] of Object.entries(paths)) root.append(svg("path", { d, class: `tile ${kind}` }));
    root.append(svg("path", { d: paths.mixed, fill: "url(#map-hatch)", "pointer-events": "none" }));
    this.cursor = svg("rect", { width: size.x, height: size.y, class: "cursor" });
    root.append(this.cursor);
    root.addEventListener("pointermove", (event) => this.pickAt(root, event));
    root.addEventListener("pointerdown", (event) => this.pickAt(root, event));
    root.addEventListener("keydown", (event) => this.onKey(event));
    this.size = size;
    show(byId("map-drawing"), html("span", { class: "axis keys" }, "keys →"), root,
      html("span", { class: "axis queries" }, "queries ↓"));
  }

  pickAt(root, event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(root.getScreenCTM().inverse());
    this.pick(Math.floor(point.y / this.size.y), Math.floor(point.x / this.size.x));
  }

  onKey(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    this.pick(this.row + move[0], this.column + move[1]);
  }

  pick(row, column) {
    this.row = Math.max(0, Math.min(this.map.rows - 1, row));
    this.column = Math.max(0, Math.min(this.map.columns - 1, column));
    setAttributes(this.cursor, { x: this.column * this.size.x, y: this.row * this.size.y });
    this.prove();
  }

  range(index, step, length) {
    return [index * step, Math.min((index + 1) * step, length) - 1];
  }

  prove() {
    const { map, problem } = this;
    const { kind, tiles, empty, full, mixed } = this.kindOf(this.row, this.column);
    const queries = this.range(this.row, map.block_q * map.group_q, problem.seqlen_q);
    const keys = this.range(this.column, map.block_k * map.group_k, problem.seqlen_k);
    const verdict = {
      empty: "Empty: the mask is false everywhere in it. Skipped.",
      full: map.expression === null ? "Full: there is no mask." :
        "Full: the mask is true everywhere in it. Computed without a look at the mask.",
      mixed: tiles === 1 ? "Mixed: the bounds decide neither way. The mask is evaluated for each element."
        : `${tiles} tiles: ${empty} empty, ${full} full, ${mixed} mixed.`,
    }[kind];
    show(byId("map-proof"),
      html("h3", {}, tiles === 1 ? `Tile (${this.row}, ${this.column})`
        : `Tiles from (${this.row * map.group_q}, ${this.column * map.group_k}) on`),
      html("p", { class: "ranges" }, html("code", {}, `query ∈ [${queries.join(", ")}]`), " ",
        html("code", {}, `key ∈ [${keys.join(", ")}]`)),
      map.nodes.length > 0 ? html("div", { class: "proof" }, this.proofOf(0)) : null,
      html("p", { class: `verdict ${kind}` }, verdict));
  }

  bounds(node) {
    const at = { all: 0, row: this.row, column: this.column,
      cell: this.row * this.map.columns + this.column }[node.per];
    return [node.lo[at] ?? -Infinity, node.hi[at] ?? Infinity];
  }

  proofOf(index) {
    const node = this.map.nodes[index];
    const [lo, hi] = this.bounds(node);
    const truth = lo === 1 ? "always" : hi === 0 ? "never" : "sometimes";
    const sign = { always: "✓", never: "✗", sometimes: "~" }[truth];
    const verdict = html("strong", { class: `truth ${truth}` }, `${sign} ${truth}`);
    if (["and", "or", "not"].includes(node.op)) {
      const words = { and: "all of", or: "any of", not: "not" }[node.op];
      return html("div", { class: "node" }, html("span", {}, `${words} `, verdict),
        html("ul", {}, ...this.parts(node).map((part) => html("li", {}, this.proofOf(part)))));
    }
    const shown = html("div", { class: "node" }, html("code", {}, node.text), " ", verdict);
    const terms = node.args.map((part) => this.map.nodes[part])
      .filter((part) => part.type === "number" && !/^-?[\d.]+$/.test(part.text));
    for (const term of terms) {
      const [least, most] = this.bounds(term);
      const number = (x) => (Number.isFinite(x) ? String(x).replace("-", "−") : text(x));
      shown.append(html("div", { class: "term" }, html("code", {}, term.text),
        least === most ? ` = ${number(least)}` : ` ∈ [${number(least)}, ${number(most)}]`));
    }
    return shown;
  }
  // a && b && c is a tree of pairs; people read a list.
  parts(node) {
    if (node.op === "not") return node.args;
    return node.args.flatMap((part) =>
      (this.map.nodes[part].op === node.op ? this.parts(this.map.nodes[part]) : [part]));
  }
}

// Diagonal lines, so that mixed tiles are told apart without colour.
function hatching(id, step) {
  return svg("defs", {}, svg("pattern", {
    id, width: step, height: step, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
  }, svg("line", { x1: 0, y1: 0, x2: 0, y2: step, class: "hatch", "stroke-width": step / 3 })));
}
