// One step as a picture: Q, K, S, V as matrices, and m, l, O as bars beside the rows they belong to.
"use strict";

const kRow = 24, kCell = 25, kLabel = 38, kGap = 10, kHead = 16;
const kColumns = {
  m: { name: "m", short: "maximum", title: "maximum so far", width: 68, signed: true },
  alpha: { name: "α", short: "factor", title: "factor of what was there", width: 44, signed: false },
  l: { name: "l", short: "sum", title: "sum so far", width: 62, signed: false },
  lse: { name: "LSE", short: "m + log l", title: "m + log l of the row", width: 68, signed: true },
  delta: { name: "D", short: "Σ dO ∘ O", title: "row sum of dO ∘ O", width: 68, signed: true },
  o: { name: "O", short: "output", title: "output", width: 46, signed: true, vector: (s) => s.dV, reference: "o" },
  dq: { name: "dQ", short: "gradient", title: "gradient of Q", width: 46, signed: true, vector: (s) => s.d, reference: "dq" },
  parts: { name: "LSE of parts", short: "", title: "of each part of the keys", width: 50, signed: true,
    vector: (s, w) => w.partCount },
};

class Scene {
  constructor(walk, view, onRow) {
    this.walk = walk;
    this.sample = walk.sample;
    this.view = view;
    this.top = kHead + view.top.length * (this.sample.d * 9 + kGap) + kHead;
    const matrices = this.buildMatrices(onRow);
    const rows = this.buildRows(onRow);
    this.element = html("div", { class: "scene-parts" }, matrices, rows);
  }

  // The matrix of a name: values [lines][columns] with lines along queries or keys.
  matrix(name) {
    const { sample } = this;
    const state = this.walk.state;
    return {
      q: () => [sample.q, sample.d, "Q"], do: () => [sample.d_o, sample.dV, "dO"],
      k: () => [sample.k, sample.d, "Kᵀ"], v: () => [sample.v, sample.dV, "Vᵀ"],
      dk: () => [state.dk, sample.d, "dKᵀ"], dv: () => [state.dv, sample.dV, "dVᵀ"],
    }[name]();
  }

  // A cell whose bar grows up from the bottom where the value is positive, and down from the top.
  valueCell(x, y, width, height, title) {
    const bar = svg("rect", { x: x + 1, width: width - 2, class: "value" });
    const cell = svg("g", {}, svg("rect", { x, y, width, height, class: "slot" }), bar,
      svg("title", {}, title));
    const set = (value, most) => {
      const size = most === 0 ? 0 : (height - 1) * Math.min(1, Math.abs(value) / most);
      setAttributes(bar, { y: value < 0 ? y + 0.5 : y + height - 0.5 - size, height: size,
        class: value < 0 ? "value negative" : "value positive" });
      cell.lastChild.textContent = `${title} = ${text(value, 3)}`;
    };
    return { cell, set };
  }

  buildMatrices(onRow) {
    const { sample, view, top } = this;
    let x = kLabel;
    const root = svg("svg", { class: "matrices", role: "img" });
    root.append(hatching("cell-hatch", 5));
    const width = kLabel + view.left.reduce((sum, name) => sum + this.matrix(name)[1] * 11 + kGap, 0) +
      sample.nk * kCell;
    this.rowBand(root, width, onRow);
    const static_ = (name, place) => {
      const [values, columns, label] = this.matrix(name);
      const most = Math.max(...values.map(Math.abs));
      for (let i = 0; i < values.length / columns; ++i) {
        for (let c = 0; c < columns; ++c) {
          const [cx, cy, width, height] = place(i, c);
          const { cell, set } = this.valueCell(cx, cy, width, height, `${label.replace("ᵀ", "")}[${i}, ${c}]`);
          set(values[i * columns + c], most);
          root.append(cell);
        }
      }
      return columns;
    };
    this.leftSpans = [];
    for (const name of view.left) {
      const at = x;
      const columns = static_(name, (i, c) => [at + c * 11, top + i * kRow + 3, 11, kRow - 6]);
      root.append(svg("text", { x: at + columns * 5.5, y: top - 5, class: "head" }, this.matrix(name)[2]));
      this.leftSpans.push([at, columns * 11]);
      x += columns * 11 + kGap;
    }
    this.x0 = x;
    let y = kHead;
    this.topSpans = [];
    for (const name of view.top) {
      const at = y;
      const columns = static_(name, (j, c) => [x + j * kCell + 3, at + c * 9, kCell - 6, 9]);
      root.append(svg("text", { x: x - 5, y: at + columns * 4.5 + 4, class: "head end" }, this.matrix(name)[2]));
      this.topSpans.push([at, columns * 9]);
      y += columns * 9 + kGap;
    }
    sample.keys.forEach((key, j) => root.append(
      svg("text", { x: x + (j + 0.5) * kCell, y: top - 4, class: "place" }, shortPlace(key))));
    this.buildCells(root);
    this.buildBottom(root, static_);
    root.append(this.marks = svg("g", {}));
    setAttributes(root, { viewBox: `0 0 ${width + 2} ${this.height}`,
      "aria-label": "Matrices of the step" });
    root.style.setProperty("--units", width + 2);
    return root;
  }

  // The labels of the rows, which pick the row whose numbers are told.
  rowBand(root, width, onRow) {
    this.bands ??= [];
    const band = svg("rect", { x: 0, width, height: kRow, class: "band" });
    this.bands.push(band);
    root.append(band);
    this.sample.queries.forEach((query, i) => {
      const label = svg("text", { x: kLabel - 6, y: this.top + (i + 0.66) * kRow, class: "place end pick" },
        shortPlace(query), svg("title", {}, `Query ${query}: show its numbers`));
      label.addEventListener("click", () => onRow(i));
      root.append(label);
    });
  }

  buildCells(root) {
    const { sample, top, x0 } = this;
    this.cells = [];
    for (let i = 0; i < sample.nq; ++i) {
      for (let j = 0; j < sample.nk; ++j) {
        const x = x0 + j * kCell;
        const y = top + i * kRow;
        const tint = svg("rect", { x, y, width: kCell, height: kRow, class: "score" });
        const number = svg("text", { x: x + kCell / 2, y: y + 16, class: "score-text" });
        root.append(svg("rect", { x, y, width: kCell, height: kRow, class: "slot" }), tint, number);
        if (!sample.sees(i, j)) {
          root.append(svg("rect", { x, y, width: kCell, height: kRow, fill: "url(#cell-hatch)", class: "masked" }));
        }
        this.cells.push({ tint, number });
      }
    }
    this.centerName = svg("text", { x: x0 - 5, y: top + sample.nq * kRow + 13, class: "head end" });
    root.append(this.centerName);
  }

  buildBottom(root, static_) {
    const { sample, view, top, x0 } = this;
    let y = top + sample.nq * kRow + kGap + 8;
    this.bottomSpans = [];
    this.gathered = [];
    for (const name of view.bottom) {
      const at = y;
      const moving = name === "dk" || name === "dv";
      const height = moving ? 14 : 9;
      const [values, columns, label] = this.matrix(name);
      const place = (j, c) => [x0 + j * kCell + 3, at + c * height, kCell - 6, height];
      if (moving) {
        const most = this.mostOf(name);
        for (let j = 0; j < values.length / columns; ++j) {
          for (let c = 0; c < columns; ++c) {
            const { cell, set } = this.valueCell(...place(j, c), `${name}[${j}, ${c}]`);
            root.append(cell);
            this.gathered.push((state) => set(state[name][j * columns + c], most));
          }
        }
      } else {
        static_(name, place);
      }
      root.append(svg("text", { x: x0 - 5, y: at + columns * height / 2 + 4, class: "head end" }, label));
      this.bottomSpans.push([at, columns * height]);
      y += columns * height + kGap;
    }
    this.height = y;
  }

  // The largest number that a bar of `name` has to show.
  mostOf(name) {
    let most = 0;
    const reference = this.sample.reference[kColumns[name]?.reference] ?? [];
    for (const values of [...this.walk.steps.map((step) => step.state[name]), reference]) {
      for (const x of values) if (Number.isFinite(x)) most = Math.max(most, Math.abs(x));
    }
    return most || 1;
  }

  buildRows(onRow) {
    const { sample, view, walk, top } = this;
    const root = svg("svg", { class: "rows", role: "img", "aria-label": "Numbers of each row" });
    this.bars = [];
    let x = kLabel;
    const columns = svg("g", {});
    for (const name of view.right) {
      const column = kColumns[name];
      const parts = column.vector ? column.vector(sample, walk) : 1;
      columns.append(svg("text", { x: x + parts * column.width / 2, y: top - 18, class: "head" }, column.name,
        svg("title", {}, column.title)));
      columns.append(svg("text", { x: x + parts * column.width / 2, y: top - 5, class: "place" }, column.short));
      const most = this.mostOf(name);
      for (let i = 0; i < sample.nq; ++i) {
        for (let c = 0; c < parts; ++c) {
          const bar = new RowBar(column, x + c * column.width, top + i * kRow, most);
          columns.append(bar.element);
          if (column.reference) bar.setReference(sample.reference[column.reference][i * parts + c]);
          this.bars.push({ bar, name, at: i * parts + c });
        }
      }
      x += parts * column.width + kGap;
    }
    this.rowBand(root, x, onRow);
    root.append(columns);
    const y = top + sample.nq * kRow + 18;
    root.append(svg("line", { x1: kLabel, x2: kLabel, y1: y - 9, y2: y + 3, class: "reference" }),
      svg("text", { x: kLabel + 6, y, class: "place start" }, "fp64 reference"),
      svg("rect", { x: kLabel + 92, y: y - 8, width: 16, height: 10, class: "ghost" }),
      svg("text", { x: kLabel + 113, y, class: "place start" }, "before this step"));
    setAttributes(root, { viewBox: `0 0 ${x} ${Math.max(this.height, y + 8)}` });
    root.style.setProperty("--units", x);
    return root;
  }

  update(step, row) {
    const { sample, top } = this;
    for (const band of this.bands) setAttributes(band, { y: top + row * kRow });
    const inTile = (i, j) => step.rows && step.keys && i >= step.rows[0] && i < step.rows[1] &&
      j >= step.keys[0] && j < step.keys[1];
    let most = 1;
    if (step.center !== "P") {
      for (const s of step.state.s) if (Number.isFinite(s)) most = Math.max(most, Math.abs(s));
    }
    this.cells.forEach(({ tint, number }, at) => {
      const s = step.state.s[at];
      const shown = Number.isFinite(s) && (sample.visible[at] || s !== 0);
      const active = inTile(Math.floor(at / sample.nk), at % sample.nk);
      tint.setAttribute("class", `score ${s < 0 ? "negative" : "positive"}`);
      tint.style.opacity = shown ? 0.12 + 0.6 * Math.min(1, Math.abs(s) / most) : 0;
      const digits = Math.abs(s) >= 9.95 ? 0 : step.center === "P" ? 2 : 1;
      number.textContent = shown && active ? text(s, digits) : "";
    });
    this.centerName.textContent = step.center;
    for (const { bar, name, at } of this.bars) bar.set(step.state[name][at], step.before[name][at]);
    for (const set of this.gathered) set(step.state);
    this.mark(step);
  }

  // Outlines of what is on chip, and crosses over skipped tiles.
  mark(step) {
    const { top, x0, sample } = this;
    const outline = (x, y, width, height, kind) => svg("rect", { x, y, width, height, class: kind, rx: 2 });
    const marks = [];
    const rowsAt = step.rows && [top + step.rows[0] * kRow, sizeOf(step.rows) * kRow];
    const keysAt = step.keys && [x0 + step.keys[0] * kCell, sizeOf(step.keys) * kCell];
    for (const [rows, keys] of step.skipped) {
      const [x, y] = [x0 + keys[0] * kCell, top + rows[0] * kRow];
      const [width, height] = [sizeOf(keys) * kCell, sizeOf(rows) * kRow];
      marks.push(svg("path", { d: `M${x + 3} ${y + 3}l${width - 6} ${height - 6}m0 ${6 - height}l${6 - width} ${height - 6}`,
        class: "skipped" }));
    }
    if (rowsAt) for (const [x, width] of this.leftSpans) marks.push(outline(x - 2, rowsAt[0], width + 4, rowsAt[1], "loaded"));
    if (keysAt) {
      for (const [y, height] of [...this.topSpans, ...this.bottomSpans]) {
        marks.push(outline(keysAt[0], y - 2, keysAt[1], height + 4, "loaded"));
      }
    }
    if (rowsAt || keysAt) {
      const [x, width] = keysAt ?? [x0, sample.nk * kCell];
      const [y, height] = rowsAt ?? [top, sample.nq * kRow];
      marks.push(outline(x, y, width, height, rowsAt && keysAt ? "active" : "strip"));
    }
    this.marks.replaceChildren(...marks);
  }
}

// A bar with its number, the outline of what it was before the step, and a tick at the reference.
class RowBar {
  constructor(column, x, y, most) {
    Object.assign(this, { column, x, y, most });
    this.width = column.width - 4;
    this.zero = column.signed ? x + this.width / 2 : x;
    this.room = column.signed ? this.width / 2 : this.width;
    const box = { y: y + 4, height: kRow - 8 };
    this.bar = svg("rect", { ...box, class: "row-bar" });
    this.ghost = svg("rect", { ...box, class: "ghost" });
    this.tick = svg("path", { class: "reference", visibility: "hidden" });
    this.number = svg("text", { x: x + this.width / 2, y: y + 15.5, class: "row-text" });
    this.element = svg("g", {}, svg("rect", { x, width: this.width, ...box, class: "slot" }), this.bar,
      this.ghost, this.tick, this.number);
  }
  span(value) {
    if (!Number.isFinite(value)) return { x: this.zero, width: 0 };
    const width = this.room * Math.min(1, Math.abs(value) / this.most);
    return { x: value < 0 ? this.zero - width : this.zero, width };
  }
  set(value, before) {
    setAttributes(this.bar, { ...this.span(value), class: `row-bar ${value < 0 ? "negative" : "positive"}` });
    const changed = !Object.is(value, before) && Number.isFinite(before) && Number.isFinite(value);
    setAttributes(this.ghost, { ...this.span(before), visibility: changed ? "visible" : "hidden" });
    this.number.textContent = Number.isNaN(value) ? "" : text(value, 2);
  }
  setReference(value) {
    if (!Number.isFinite(value)) return;
    const { x, width } = this.span(value);
    const at = value < 0 ? x : x + width;
    // In two parts, so that the number between them can be read.
    setAttributes(this.tick, { d: `M${at} ${this.y + 1}v6M${at} ${this.y + kRow - 7}v6`, visibility: "visible" });
  }
}

// Longer positions would run into each other.
const shortPlace = (n) => (n < 10000 ? String(n) : n < 1e6 ? `${Math.round(n / 1000)}k` :
  `${(n / 1e6).toFixed(2)}M`);
