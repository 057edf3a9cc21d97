// FlashAttention: K, V blocks outside, Q blocks inside; O, l and m go back and forth. Block-sparse
// attention is the same over fewer tiles.
"use strict";

const kFlashAttention = {
  name: "flash_attention",
  title: "FlashAttention",
  paper: "Dao et al. 2022, FlashAttention, algorithm 1",
  idea: "The first of its kind: a block of keys and values stays on chip, and all queries pass by. " +
    "Each pass loads O, l and m of the queries, rescales them, and writes them back normalised. S and " +
    "P never reach memory, but O does once for every block of keys.",
  view: { left: ["q"], top: ["k"], bottom: ["v"], right: ["m", "alpha", "l", "o"] },
  listing: [
    ["begin", "line 2", "in memory: O ← 0, l ← 0, m ← −∞"],
    ["load_kv", "lines 5, 6", "for each block of keys j: load K j and V j"],
    ["load_q", "lines 7, 8", "  for each block of queries i: load Q i, O i, l i, m i"],
    ["scores", "line 9", "    S ← Q i K jᵀ, masked"],
    ["maximum", "lines 10, 11", "    m new ← max(m, row maxima of S); P ← e^(S − m new)"],
    ["rescale", "lines 11, 12", "    l new ← α l + row sums of P;  O ← (α l O) / l new + …"],
    ["add", "line 12", "    … + P V j / l new"],
    ["store", "lines 12, 13", "    write O i, l i, m i"],
  ],
  run: (sample, blocks) => runFlashAttention(sample, blocks, false),
};

const kBlockSparse = {
  name: "block_sparse",
  title: "Block-sparse",
  paper: "Dao et al. 2022, FlashAttention, algorithm 5",
  idea: "FlashAttention that looks at the mask first: a tile in which no query sees any key costs " +
    "neither a load nor a product. Time and traffic fall with the share of tiles that are left. In " +
    "this library the mask is a formula, and interval arithmetic finds the empty tiles.",
  view: kFlashAttention.view,
  listing: [
    ...kFlashAttention.listing.slice(0, 2).map(([key, , words], i) =>
      [key, ["line 2", "lines 5, 6"][i], words]),
    ["skip", "line 8", "  for each block of queries i whose tile is not empty:"],
    ["load_q", "line 9", "    load Q i, O i, l i, m i"],
    ["scores", "lines 10, 11", "    S ← Q i K jᵀ, masked"],
    ["maximum", "lines 12, 13", "    m new ← max(m, row maxima of S); P ← e^(S − m new)"],
    ["rescale", "lines 13, 15", "    l new ← α l + row sums of P;  O ← (α l O) / l new + …"],
    ["add", "line 15", "    … + P V j / l new"],
    ["store", "lines 15, 16", "    write O i, l i, m i"],
  ],
  run: (sample, blocks) => runFlashAttention(sample, blocks, true),
};

function runFlashAttention(sample, blocks, skips) {
  const w = new Walk(sample, blocks);
  const all = [0, sample.nq];
  w.begin(all);
  w.moved.write("o", sample.nq * sample.dV).write("lse", 2 * sample.nq);
  w.step("begin", "Start with nothing", "Output, sums and maxima of every query lie in memory from " +
    "the beginning.", { rows: all });
  for (const keys of w.keyBlocks) {
    const own = [["K", sizeOf(keys) * sample.d], ["V", sizeOf(keys) * sample.dV]];
    w.moved.read("k", sizeOf(keys) * sample.d).read("v", sizeOf(keys) * sample.dV);
    w.step("load_kv", "Load a block of keys and values", `Keys and values ${rangeText(keys)} come on ` +
      "chip and stay for all queries. They are never loaded again.", { keys, chip: own });
    for (const rows of w.rowBlocks) {
      if (skips && sample.coverage(rows, keys) === "empty") {
        w.skipped.push([rows, keys]);
        w.step("skip", "Skip an empty tile", `None of queries ${rangeText(rows)} sees any of keys ` +
          `${rangeText(keys)}.`, { rows, keys, chip: own });
        continue;
      }
      flashTile(w, rows, keys, own);
    }
  }
  for (let i = 0; i < sample.nq; ++i) {
    const { m, l, lse } = w.state;
    lse[i] = l[i] > 0 ? m[i] + Math.log(l[i]) : -Infinity;
  }
  return w;
}

function flashTile(w, rows, keys, own) {
  const { sample } = w;
  const { m, l, alpha } = w.state;
  const n = sizeOf(rows);
  const chip = [...own, ["Q", n * sample.d], ["O", n * sample.dV], ["m, l", 2 * n]];
  w.moved.read("q", n * sample.d).read("o", n * sample.dV).read("lse", 2 * n);
  w.step("load_q", "Load queries and what they have so far", `${queriesText(rows, "come")} with the ` +
    "output, sum and maximum.", { rows, keys, chip });
  const tile = { rows, keys, chip: [...chip, ["S, P", n * sizeOf(keys)]] };
  w.computeScores(rows, keys);
  w.step("scores", "Scores of one tile", sample.coverage(rows, keys) === "empty"
    ? "No score of this tile is seen: all are −∞, and the work is for nothing. Algorithm 1 does it " +
      "all the same." : `${queriesText(rows, "meet")} keys ${rangeText(keys)}.`, tile);
  const before = m.slice();
  let details = w.eachRow(rows, (i) => {
    m[i] = Math.max(m[i], w.rowMax(i, keys));
    alpha[i] = shrink(before[i], m[i]);
    return `m = max(${text(before[i])}, ${text(w.rowMax(i, keys))}) = ${text(m[i])}, ` +
      `α = ${text(alpha[i], 3)}`;
  });
  w.step("maximum", "New maxima", "Where a larger score came, α is below 1.", { ...tile, details });
  w.center = "P";
  details = w.eachRow(rows, (i) => {
    const old = l[i];
    const sum = w.exponentiate(i, keys, m[i]);
    l[i] = alpha[i] * old + sum;
    if (l[i] > 0) w.scaleRow(i, alpha[i] * old / l[i]);
    return `l = ${text(alpha[i], 3)} · ${text(old, 3)} + ${text(sum, 3)} = ${text(l[i], 3)}; ` +
      `O · ${l[i] > 0 ? text(alpha[i] * old / l[i], 3) : "1"}`;
  });
  w.step("rescale", "Rescale what is there", "O is always normalised here, so its old weight is undone " +
    "and the new one put on: times α l old / l new. The dashed outline is what was there before.",
    { ...tile, details });
  details = w.eachRow(rows, (i) => {
    if (l[i] > 0) w.accumulate(i, keys, 1 / l[i]);
    return `O + P V / ${text(l[i], 3)}`;
  });
  w.step("add", "Add this tile", "The product of the weights with V joins, divided by the new sum.",
    { ...tile, details });
  alpha.fill(NaN);
  w.moved.write("o", n * sample.dV).write("lse", 2 * n);
  w.step("store", "Write it back", "Output, sum and maximum return to memory until the next block of " +
    "keys. This is the traffic that FlashAttention-2 saves.", { rows, keys, chip });
}
