// The two memories of a step, to one scale but for names that need more room: the large, slow one,
// where tensors lie, and the small, fast one on the chip, where all arithmetic happens; between them
// what this step moves.
"use strict";

const kTensorNames = { q: "Q", k: "K", v: "V", o: "O", lse: "LSE", s: "S", p: "P", do: "dO", dq: "dQ", dk: "dK",
  dv: "dV", d: "D", partial: "parts" };

class TwoMemories {
  constructor(walk, algorithm) {
    const { nq, nk, d, dV } = walk.sample;
    const elements = { q: nq * d, k: nk * d, v: nk * dV, o: nq * dV, s: nq * nk, p: nq * nk, do: nq * dV, dq: nq * d,
      dk: nk * d, dv: nk * dV, d: nq, lse: algorithm.view.right.includes("alpha") && algorithm.listing.some(
        ([, , words]) => words.includes("write O i, l i, m i")) ? 2 * nq : nq };
    this.names = { ...kTensorNames, lse: elements.lse === nq ? "LSE" : "l, m" };
    this.dtypeBytes = walk.sample.dtypeBytes;
    this.slow = Object.entries(kTensorNames).filter(([name]) => name in walk.moved.operands).map(([name]) =>
      [name, (elements[name] ?? walk.moved.of(name).written) * walk.moved.elementBytes(name)]);
    this.steps = walk.steps;
    const sum = (parts) => parts.reduce((total, [, bytes]) => total + bytes, 0);
    this.most = Math.max(sum(this.slow), ...walk.steps.map((step) => sum(this.onChip(step))));
    this.hasChip = walk.steps.some((step) => step.chip.length > 0);  // walks of a softmax alone keep no blocks
  }

  onChip(step) {
    return step.chip.map(([name, elements]) =>
      [name, elements * (name === "m, l" || name === "LSE, D" ? 4 : this.dtypeBytes)]);
  }

  // [[operand, bytes]] that a step reads or writes.
  movedBy(index, direction) {
    const now = this.steps[index].moved;
    const before = index > 0 ? this.steps[index - 1].moved.operands : {};
    return Object.entries(now.operands).map(([name, moved]) =>
      [name, (moved[direction] - (before[name]?.[direction] ?? 0)) * now.elementBytes(name)]).filter(([, bytes]) => bytes > 0);
  }

  box(name, bytes, kind = "") {
    return html("span", { class: `box ${kind}`, style: `width:${100 * bytes / this.most}%`, title: `${name}: ${bytes} B` },
      html("b", {}, name), html("small", {}, `${bytes} B`));
  }

  element(index) {
    const read = this.movedBy(index, "read");
    const written = this.movedBy(index, "written");
    const kind = (name) => (read.some(([other]) => other === name) ? "reads" : "") +
      (written.some(([other]) => other === name) ? " writes" : "");
    const listed = (moved) => moved.map(([name, bytes]) => `${this.names[name]} ${bytes} B`).join(", ");
    const chip = this.onChip(this.steps[index]);
    return html("div", { class: "memories", role: "group", "aria-label": "The two memories" },
      html("p", { class: "memory-name" }, html("strong", {}, "Slow memory"), " holds the tensors"),
      html("div", { class: "boxes" }, ...this.slow.map(([name, bytes]) => this.box(this.names[name], bytes, kind(name)))),
      html("p", { class: "arrows" },
        read.length > 0 ? html("span", { class: "arrow down" }, `↓ reads ${listed(read)}`) : null,
        written.length > 0 ? html("span", { class: "arrow up" }, `↑ writes ${listed(written)}`) : null,
        read.length + written.length === 0 ? html("span", { class: "arrow" }, "nothing moves in this step") : null),
      ...(this.hasChip ? [html("div", { class: "boxes chip" }, ...chip.map(([name, bytes]) => this.box(name, bytes))),
        html("p", { class: "memory-name" }, html("strong", {}, "On chip"),
          chip.length > 0 ? ", where the arithmetic happens" : ": nothing")] : []));
  }
}
