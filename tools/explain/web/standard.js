// Standard attention: S and P as matrices in memory.
"use strict";

const kStandard = {
  name: "standard",
  title: "Standard attention",
  paper: "Dao et al. 2022, FlashAttention, algorithm 0",
  idea: "Three operations, one after the other, each reading its input from memory and writing its " +
    "result back. S and P have N × N elements and cross the memory bus four times: for long " +
    "sequences that is nearly all the traffic.",
  view: { left: ["q"], top: ["k"], bottom: ["v"], right: ["m", "l", "o"] },
  listing: [
    ["scores", "line 1", "S ← Q Kᵀ by blocks; write S"],
    ["softmax", "line 2", "read S; P ← softmax of each row; write P"],
    ["product", "line 3", "load P and V by blocks; O ← P V; write O"],
  ],
  run: runStandard,
};

function runStandard(sample, blocks) {
  const w = new Walk(sample, blocks);
  const { m, l } = w.state;
  const n = sample.nq * sample.nk;
  const elements = (rows) => sizeOf(rows) * sample.nk;
  w.begin([0, sample.nq]);
  w.moved.read("k", sample.nk * sample.d);
  for (const rows of w.rowBlocks) {
    w.moved.read("q", sizeOf(rows) * sample.d).write("s", elements(rows));
    w.computeScores(rows, [0, sample.nk]);
    w.step("scores", "Write all scores", `The scores of queries ${rangeText(rows)} with every key go to ` +
      "memory, hidden ones as well.", { rows, keys: [0, sample.nk], chip: [["Q", sizeOf(rows) * sample.d],
      ["K", sample.nk * sample.d]] });
  }
  const isP = new Set();
  for (const rows of w.rowBlocks) {
    w.moved.read("s", elements(rows)).write("p", elements(rows));
    const details = w.eachRow(rows, (i) => {
      m[i] = Math.max(sample.sink, w.rowMax(i, [0, sample.nk]));
      l[i] = w.exponentiate(i, [0, sample.nk], m[i]) +
        (sample.sink === -Infinity ? 0 : Math.exp(sample.sink - m[i]));
      for (let j = 0; j < sample.nk && l[i] > 0; ++j) w.state.s[i * sample.nk + j] /= l[i];
      w.state.lse[i] = l[i] > 0 ? m[i] + Math.log(l[i]) : -Infinity;
      isP.add(i);
      return `maximum ${text(m[i])}, sum ${text(l[i], 3)}`;
    });
    w.center = isP.size === sample.nq ? "P" : "S, then P";
    w.step("softmax", "Softmax", `Rows ${rangeText(rows)} of S are read back, made into weights, and ` +
      "written again.", { rows, keys: [0, sample.nk], details, chip: [["a row of S", sample.nk]] });
  }
  w.moved.read("v", sample.nk * sample.dV);
  for (const rows of w.rowBlocks) {
    w.moved.read("p", elements(rows)).write("o", sizeOf(rows) * sample.dV);
    const details = w.eachRow(rows, (i) => {
      w.accumulate(i, [0, sample.nk]);
      return "O = weights times V";
    });
    w.step("product", "Average the values", `P is read a last time, for queries ${rangeText(rows)}. ` +
      `${textOfCount(4 * n)} of the elements that moved in all belong to S and P.`,
      { rows, keys: [0, sample.nk], details, chip: [["P", elements(rows)], ["V", sample.nk * sample.dV]] });
  }
  return w;
}
