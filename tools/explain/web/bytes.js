// What the whole problem moves, for block sizes that the reader chooses, and whether they fit.
"use strict";

const kTitles = { standard: "Standard attention", flash_attention: "FlashAttention",
  flash_attention_2: "FlashAttention-2", block_sparse: "Block-sparse" };

// As many rows as share one pass over K and V in the library's plan.
function startTiling(data) {
  const rows = Math.max(data.map.block_q, data.plan.rows_per_task);
  return data.tilings.filter((tiling) => tiling.block_k === data.map.block_k && tiling.block_q <= rows)
    .reduce((best, tiling) => (tiling.block_q > best.block_q ? tiling : best));
}

class BytesPanel {
  constructor(data) {
    this.data = data;
    this.size = sizesOf(data.problem);
    const values = (side) => [...new Set(data.tilings.map((tiling) => tiling[side]))].sort((a, b) => a - b);
    this.sizes = { q: values("block_q"), k: values("block_k") };
    for (const [id, side] of [["block-q", "q"], ["block-k", "k"]]) {
      const slider = byId(id);
      slider.max = this.sizes[side].length - 1;
      slider.value = this.sizes[side].indexOf(startTiling(data)[`block_${side}`]);
      slider.addEventListener("input", () => this.update());
    }
    show(byId("memory"), ...data.memories.map(({ name, bytes }, i) =>
      html("option", { value: i }, `${name}, ${textOfBytes(bytes)}`)));
    byId("phase").value = data.problem.phase;
    for (const id of ["memory", "phase"]) byId(id).addEventListener("change", () => this.update());
    this.update();
  }

  get tiling() {
    const q = this.sizes.q[byId("block-q").value];
    const k = this.sizes.k[byId("block-k").value];
    return this.data.tilings.find((tiling) => tiling.block_q === q && tiling.block_k === k);
  }

  update() {
    const phase = byId("phase").value;
    const { tiling } = this;
    const memory = this.data.memories[byId("memory").value || 0];
    byId("block-q-value").textContent = tiling.block_q;
    byId("block-k-value").textContent = tiling.block_k;
    const lower = compulsoryOf(phase, this.size);
    const rows = kModelled.map((name) => ({ name, moved: modelOf(phase, name, this.size, tiling) }));
    this.introduce(phase, rows, lower);
    this.drawBars(rows, lower, memory);
    this.drawFit(phase, tiling, memory);
  }

  introduce(phase, rows, lower) {
    const of = (name) => rows.find((row) => row.name === name).moved.bytes;
    const { heads, headsK } = this.size;
    const { block_k: keys } = this.tiling;
    const more = phase === "forward" && of("flash_attention") > of("standard");
    show(byId("bytes-intro"), `All ${textOfCount(heads)} query heads, counted by the algorithms' own loads and ` +
      `stores: standard attention moves ${textOfBytes(of("standard"))}, FlashAttention-2 ` +
      `${textOfBytes(of("flash_attention_2"))}; at least ${textOfBytes(lower.bytes)} must move. ` +
      "The larger the block that stays on chip, the fewer times the rest is loaded: rows of Q in FlashAttention-2, " +
      "keys in FlashAttention. Until it no longer fits." +
      (more ? ` With ${keys} keys a block FlashAttention moves more than standard attention: it reads Q and O and writes O ` +
        "for every block, 3 N² d / B_c elements, where standard attention moves 4 N² of S and P. It moves less once B_c is " +
        "above 3/4 of the head size." : "") +
      (heads === headsK ? "" : " As in the papers every query head loads K and V for itself; the lower bound " +
        "knows that heads share them."));
  }

  drawBars(rows, lower, memory) {
    const theorem = this.theorem(memory);
    const most = Math.max(...rows.map((row) => row.moved.bytes), lower.bytes);
    const row = (title, read, written, note, kind = "") => html("div", { class: `bytes-row ${kind}` },
      html("span", { class: "bytes-name" }, title),
      stackedBar([{ name: "read", share: read / most, kind: "read" },
        { name: "written", share: written / most, kind: "written" }], `${title}: ${note}`),
      html("span", { class: "bytes-note" }, note));
    show(byId("bytes-bars"), ...rows.map(({ name, moved }) => row(kTitles[name], moved.bytesRead,
      moved.bytesWritten, `${textOfBytes(moved.bytes)} · ${textOfRatio(moved.bytes / lower.bytes)} × bound`)),
    row("Each tensor once", lower.bytesRead, lower.bytesWritten, `${textOfBytes(lower.bytes)}, the bound`, "bound"),
    html("p", { class: "legend" }, html("span", { class: "entry" }, html("i", { class: "key read" }), "read"),
      html("span", { class: "entry" }, html("i", { class: "key written" }), "written"),
      html("span", { class: "entry" }, `N² d² / M (theorem 2, without its constant): ${textOfBytes(theorem)}`)));
  }

  theorem(memory) {
    const { heads, queries, keys, d, dtypeBytes } = this.size;
    const elements = memory.bytes / dtypeBytes;
    return heads * queries * keys * d * d / elements * dtypeBytes;
  }

  drawFit(phase, tiling, memory) {
    const parts = onChip(phase, this.size, tiling.block_q, tiling.block_k);
    const sum = parts.reduce((total, [, bytes]) => total + bytes, 0);
    const fits = sum <= memory.bytes;
    const scale = Math.max(sum, memory.bytes);
    show(byId("fit"),
      stackedBar(parts.map(([name, bytes], i) => ({ name: `${name}: ${textOfBytes(bytes)}`,
        share: bytes / scale, kind: `chip-${i % 6}` })), "Memory of the blocks"),
      html("p", { class: `verdict ${fits ? "full" : "over"}` }, fits
        ? `✓ fits: ${textOfBytes(sum)} of ${textOfBytes(memory.bytes)}`
        : `✗ does not fit: ${textOfBytes(sum)} are needed, ${memory.name} has ${textOfBytes(memory.bytes)}`),
      html("ul", { class: "parts" }, ...parts.map(([name, bytes], i) => html("li", {},
        html("i", { class: `key chip-${i % 6}` }), `${name}: ${textOfBytes(bytes)}`))),
      html("p", { class: "source" }, `Blocks in ${this.data.problem.dtype}, scores and sums in f32. One buffer each; ` +
        "kernels that load ahead hold two or more of K and V."));
  }
}
