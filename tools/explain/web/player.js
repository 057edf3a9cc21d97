// The walk: which algorithm, which step, by buttons, keys and the address of the page.
"use strict";

// The sample and its blocks with which walks open.
function startOfWalks(data) {
  const sample = new Sample(data.sample, data.problem.dtype_bytes);
  return { sample, blocks: { q: Math.min(4, sample.nq), k: Math.min(4, sample.nk) } };
}

// The row of a step whose sums shrink most without vanishing, or null.
function mostRescaled(step) {
  let best = null;
  for (let i = step.rows?.[0] ?? 0; i < (step.rows?.[1] ?? 0); ++i) {
    const alpha = step.state.alpha[i];
    if (alpha > 0 && alpha < 1 && !(alpha >= step.state.alpha[best])) best = i;
  }
  return best;
}

class Player {
  constructor(data) {
    Object.assign(this, startOfWalks(data));
    this.row = 0;
    this.sources = data.sources ?? {};
    this.introduce(data);
    this.buildControls();
    if (!this.openAddress()) this.open(this.planned(data), 0, false);
    addEventListener("hashchange", () => this.openAddress());
    addEventListener("keydown", (event) => this.onKey(event));
  }

  planned(data) {
    if (data.problem.phase === "backward") return kBackward;
    const named = kAlgorithms.find((algorithm) => algorithm.name === data.plan.algorithm);
    // Query chunks whose key chunks are summarised and merged: as splits are.
    return named ?? kDecoding;
  }

  introduce(data) {
    const { sample } = this;
    const whole = sample.nq === data.problem.seqlen_q && sample.nk === data.problem.seqlen_k;
    show(byId("sample-intro"), (whole ? "The whole problem" : `${sample.nq} of the queries and ${sample.nk} of the keys, ` +
      "spread over the sequence") + `, with random vectors of ${sample.d} numbers: few enough to follow each of them. ` +
      "Bars in Q, K and V are such numbers, up and blue if positive, down and orange if negative. Rows and columns are labelled " +
      "with their true positions, which the mask sees; the text counts them from 1. This page computes every " +
      "number in double precision; the pink ticks are what the library's fp64 reference gave.");
  }

  buildControls() {
    show(byId("tabs"), ...kAlgorithms.map((algorithm) => {
      const tab = html("button", { type: "button", role: "tab", id: `tab-${algorithm.name}`,
        "aria-controls": "walk" }, algorithm.title);
      tab.addEventListener("click", () => this.open(algorithm, 0));
      return tab;
    }));
    const goes = { first: () => this.go(0), previous: () => this.go(this.index - 1),
      next: () => this.go(this.index + 1), last: () => this.go(Infinity), play: () => this.toggle() };
    for (const [id, action] of Object.entries(goes)) {
      byId(id).addEventListener("click", () => {
        if (id !== "play") this.pause();
        action();
      });
    }
    byId("position").addEventListener("input", () => {
      this.pause();
      this.go(Number(byId("position").value));
    });
    for (const [id, side, most] of [["sample-q", "q", this.sample.nq], ["sample-k", "k", this.sample.nk]]) {
      const sizes = [1, 2, 3, 4, 6, 8, 12, 16].filter((size) => size <= most);
      show(byId(id), ...sizes.map((size) => html("option", {}, String(size))));
      byId(id).addEventListener("change", () => {
        this.blocks = { ...this.blocks, [side]: Number(byId(id).value) };
        this.open(this.algorithm, 0);
      });
    }
  }

  // "#flash_attention_2/4x4/17": algorithm, blocks of the sample, step from 1 on.
  openAddress() {
    const found = /^#(\w+)(?:\/(\d+)x(\d+))?\/(\d+)$/.exec(location.hash);
    const algorithm = found && kAlgorithms.find(({ name }) => name === found[1]);
    if (!algorithm) return false;
    const fits = (size, most) => size >= 1 && size <= most;
    if (found[2] && fits(Number(found[2]), this.sample.nq) && fits(Number(found[3]), this.sample.nk)) {
      this.blocks = { q: Number(found[2]), k: Number(found[3]) };
    }
    this.open(algorithm, Number(found[4]) - 1);
    this.pickRow(mostRescaled(this.walk.steps[this.index]) ?? this.row);
    byId("tabs").scrollIntoView();
    return true;
  }

  open(algorithm, index, writeAddress = true) {
    this.pause();
    this.algorithm = algorithm;
    this.walk = algorithm.run(this.sample, this.blocks);
    byId("sample-q").value = String(this.blocks.q);
    byId("sample-k").value = String(this.blocks.k);
    for (const { name } of kAlgorithms) {
      const chosen = name === algorithm.name;
      setAttributes(byId(`tab-${name}`), { "aria-selected": chosen, tabindex: chosen ? 0 : -1 });
    }
    byId("walk").setAttribute("aria-labelledby", `tab-${algorithm.name}`);
    show(byId("walk-idea"), algorithm.idea);
    this.list(algorithm);
    this.scene = new Scene(this.walk, algorithm.view, (row) => this.pickRow(row));
    show(byId("scene"), this.scene.element);
    byId("position").max = this.walk.steps.length - 1;
    this.traffic = new TrafficSoFar(this.walk, algorithm);
    this.memories = new TwoMemories(this.walk, algorithm);
    this.go(index, writeAddress);
  }

  // The algorithm's lines, and beside each the line of the library's kernel that carries it out.
  list(algorithm) {
    const sources = this.sources[algorithm.name] ?? {};
    const here = (key) => sources[key] && html("span", { class: "here", title: `${sources[key][0]}, line ${sources[key][1]}` },
      `${sources[key][0].split("/").at(-1)}:${sources[key][1]}`);
    // Lines that wrap keep the indentation of their level.
    const words = (text) => html("span", { class: "words", style: `--level:${text.search(/\S/)}` }, text.trim());
    show(byId("listing"), ...algorithm.listing.map(([key, line, text]) => html("li", { "data-line": key },
      html("span", { class: "ref" }, html("span", {}, line), here(key) ?? null), words(text))));
    const files = Object.values(sources).map(([file]) => file);
    const names = new Set(files.map((file) => file.split("/").at(-1)));
    show(byId("paper"), `After ${algorithm.paper}; own words.`, files.length === 0 ? null
      : ` At the right of each, the line of this library's GPU kernel that does it: ${[...names].join(", ")} in ` +
        `${files[0].slice(0, files[0].lastIndexOf("/"))}.`);
  }

  go(index, writeAddress = true) {
    const last = this.walk.steps.length - 1;
    this.index = Math.max(0, Math.min(last, index));
    const step = this.walk.steps[this.index];
    if (step.rows && (this.row < step.rows[0] || this.row >= step.rows[1])) this.row = step.rows[1] - 1;
    byId("position").value = this.index;
    byId("counter").textContent = `step ${this.index + 1} of ${last + 1}`;
    byId("previous").disabled = byId("first").disabled = this.index === 0;
    byId("next").disabled = byId("last").disabled = this.index === last;
    for (const item of byId("listing").children) {
      if (item.dataset.line === step.line) item.setAttribute("aria-current", "step");
      else item.removeAttribute("aria-current");
    }
    this.describe(step);
    this.scene.update(step, this.row);
    this.traffic.update(step);
    show(byId("memories"), this.memories.element(this.index));
    if (writeAddress) {
      history.replaceState(null, "",
        `#${this.algorithm.name}/${this.blocks.q}x${this.blocks.k}/${this.index + 1}`);
    }
    if (this.index === last) this.pause();
  }

  describe(step) {
    const detail = step.details[this.row];
    show(byId("explanation"), html("h3", {}, step.title), html("p", {}, step.text),
      html("p", { class: "detail" }, detail ? html("span", { class: "which" },
        `query ${this.sample.queries[this.row]}: `) : " ", detail ?? ""));
  }

  pickRow(row) {
    this.row = Math.max(0, Math.min(this.sample.nq - 1, row));
    const step = this.walk.steps[this.index];
    this.describe(step);
    this.scene.update(step, this.row);
  }

  toggle() {
    if (this.timer) {
      this.pause();
      return;
    }
    if (this.index === this.walk.steps.length - 1) this.go(0);
    byId("play").textContent = "Pause";
    this.timer = setInterval(() => this.go(this.index + 1), 1200);
  }
  pause() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play").textContent = "Play";
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const inside = byId("steps").contains(event.target);
    if (!inside && event.target !== document.body) return;
    if (/^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    const neighbour = (by) => {
      const at = kAlgorithms.indexOf(this.algorithm) + by;
      this.open(kAlgorithms[(at + kAlgorithms.length) % kAlgorithms.length], 0);
      if (event.target.getAttribute("role") === "tab") byId(`tab-${this.algorithm.name}`).focus();
    };
    const anywhere = { ArrowLeft: () => this.go(this.index - 1), ArrowRight: () => this.go(this.index + 1),
      "[": () => neighbour(-1), "]": () => neighbour(1) };
    const insideOnly = { Home: () => this.go(0), End: () => this.go(Infinity),
      ArrowUp: () => this.pickRow(this.row - 1), ArrowDown: () => this.pickRow(this.row + 1) };
    if (event.target.tagName !== "BUTTON") insideOnly[" "] = () => this.toggle();
    const action = anywhere[event.key] ?? (inside ? insideOnly[event.key] : undefined);
    if (!action) return;
    event.preventDefault();
    if (event.key !== " ") this.pause();
    action();
  }
}

// Bytes that the walk has moved, beside what standard attention moves and what must move.
class TrafficSoFar {
  constructor(walk, algorithm) {
    const { sample } = walk;
    const phase = walk.backward ? "backward" : "forward";
    const other = [kThreePass, kOnline].find((it) => it !== algorithm);
    this.marks = [kThreePass, kOnline].includes(algorithm)
      ? [{ name: other.title.toLowerCase(), bytes: other.run(sample, walk.blocks).moved.bytes }]
      : [{ name: "standard attention", bytes: modelOf(phase, "standard", sample.size, sample.tiling(walk.blocks)).bytes },
        { name: "lower bound: each tensor once", bytes: compulsoryOf(phase, sample.size).bytes }];
    this.most = Math.max(walk.moved.bytes, ...this.marks.map((mark) => mark.bytes)) * 1.04;
  }
  update(step) {
    const share = (bytes) => `${100 * bytes / this.most}%`;
    const track = html("div", { class: "track" },
      html("span", { class: "moved read", style: `width:${share(step.moved.bytesRead)}` }),
      html("span", { class: "moved written", style: `width:${share(step.moved.bytesWritten)}` }),
      ...this.marks.map((mark, i) => html("span", { class: `tick tick-${i}`, style: `left:${share(mark.bytes)}` })));
    show(byId("traffic"),
      html("p", {}, html("strong", {}, "Memory traffic so far: "),
        `${step.moved.bytesRead} B read, ${step.moved.bytesWritten} B written`), track,
      html("p", { class: "marks" }, ...this.marks.map((mark, i) => html("span", {},
        html("i", { class: `key tick-${i}` }), `${mark.name}: ${mark.bytes} B`))));
  }
}
