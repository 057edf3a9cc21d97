// FlashAttention-2: Q blocks outside, K, V blocks inside, one normalisation at the end.
"use strict";

const kFlashAttention2 = {
  name: "flash_attention_2",
  title: "FlashAttention-2",
  paper: "Dao 2023, FlashAttention-2, algorithm 1",
  idea: "A block of queries stays on chip and the keys stream past it. Its maxima m, sums l and the " +
    "unnormalised output O stay in registers; when a maximum rises, what was summed before shrinks " +
    "by α = e^(m old − m new). Nothing of size N × N ever reaches memory.",
  view: { left: ["q"], top: ["k"], bottom: ["v"], right: ["m", "alpha", "l", "o"] },
  listing: [
    ["outer", "line 3", "for each block of queries i"],
    ["load_q", "line 4", "  load Q i from memory"],
    ["begin", "line 5", "  on chip: O ← 0, l ← 0, m ← −∞"],
    ["inner", "line 6", "  for each block of keys j that is not empty"],
    ["load_kv", "line 7", "    load K j and V j"],
    ["scores", "line 8", "    S ← Q i K jᵀ, masked"],
    ["maximum", "line 9", "    m ← max(m, row maxima of S); α ← e^(m old − m new)"],
    ["rescale", "lines 9, 10", "    l ← α l,  O ← α O"],
    ["add", "lines 9, 10", "    P ← e^(S − m);  l ← l + row sums of P;  O ← O + P V j"],
    ["normalise", "lines 12, 13", "  O ← O / l,  LSE ← m + log l"],
    ["store", "lines 14, 15", "  write O i and LSE i"],
  ],
  run: runFlashAttention2,
};

const isFirst = (maxima, [r0, r1]) => maxima.slice(r0, r1).every((m) => m === -Infinity);

// The steps that FlashAttention-2 and decoding share: one tile against the rows that stay on chip.
function addTile(w, rows, keys, chip) {
  const { m, l, alpha } = w.state;
  const tile = { rows, keys, chip };
  w.computeScores(rows, keys);
  const coverage = w.sample.coverage(rows, keys);
  w.step("scores", "Scores of one tile",
    `${queriesText(rows, "meet")} keys ${rangeText(keys)}. ` +
    (coverage === "full" ? "Every score is seen, so the mask is not looked at."
      : "The mask hides some: their score is −∞."), tile);
  const before = m.slice();
  let details = w.eachRow(rows, (i) => {
    const max = w.rowMax(i, keys);
    m[i] = Math.max(m[i], max);
    alpha[i] = shrink(before[i], m[i]);
    return `m = max(${text(before[i])}, ${text(max)}) = ${text(m[i])}, ` +
      `α = e^(${text(before[i])} − ${text(m[i])}) = ${text(alpha[i], 3)}`;
  });
  const risen = Object.keys(details).filter((i) => m[i] > before[i] && before[i] > -Infinity);
  w.step("maximum", "New maxima",
    isFirst(before, rows) ? "This is the first tile of these rows: they hold nothing that would have to shrink."
      : risen.length > 0 ? `The maximum rose in ${risen.length} of ${sizeOf(rows)} rows: their α is ` +
      "below 1 and what they hold so far must shrink."
      : "No row that held something found a larger score: nothing has to shrink.",
    { ...tile, details });
  details = w.eachRow(rows, (i) => {
    const old = l[i];
    l[i] *= alpha[i];
    w.scaleRow(i, alpha[i]);
    return old === 0 ? "nothing is summed yet: l = 0, O = 0"
      : `l = ${text(alpha[i], 3)} · ${text(old, 3)} = ${text(l[i], 3)}, O shrinks alike`;
  });
  w.step("rescale", "Rescale what is there", isFirst(before, rows)
    ? "Nothing is there yet. From the next tile on, l and O are sums that a larger maximum makes too large."
    : "l and O were sums of e^(score − old maximum). Times α they are sums of e^(score − new maximum): " +
    "this is the whole trick. The dashed outline is what was there before.", { ...tile, details });
  w.center = "P";
  details = w.eachRow(rows, (i) => {
    const old = l[i];
    const sum = w.exponentiate(i, keys, m[i]);
    l[i] += sum;
    w.accumulate(i, keys);
    return `l = ${text(old, 3)} + ${text(sum, 3)} = ${text(l[i], 3)}`;
  });
  w.step("add", "Add this tile",
    "P = e^(S − m) is never larger than 1. Its row sums go to l, its product with V to O" +
    (w.sample.dropout ? "; dropped elements count in l, not in O." : "."), { ...tile, details });
  alpha.fill(NaN);
}

function runFlashAttention2(sample, blocks) {
  const w = new Walk(sample, blocks);
  for (const rows of w.rowBlocks) {
    const n = sizeOf(rows);
    const own = [["Q", n * sample.d]];
    w.moved.read("q", n * sample.d);
    w.step("load_q", "Load a block of queries",
      `${queriesText(rows, "come")} on chip, and ${sizeOf(rows) === 1 ? "stays" : "stay"} until the output is done.`,
      { rows, chip: own });
    w.begin(rows);
    const sums = [...own, ["O", n * sample.dV], ["m, l", 2 * n]];
    w.step("begin", "Start with nothing",
      sample.sink === -Infinity ? "No key is seen yet: maximum −∞, sum 0, output 0."
        : "The sink is a key without a value: m starts at its logit and l at 1.",
      { rows, chip: sums });
    for (const keys of w.keyBlocks) {
      if (sample.coverage(rows, keys) === "empty") {
        w.skipped.push([rows, keys]);
        w.step("inner", "Skip an empty tile",
          `None of queries ${rangeText(rows)} sees any of keys ${rangeText(keys)}: nothing is ` +
          "loaded, nothing computed.", { rows, keys, chip: sums });
        continue;
      }
      const chip = [...sums, ["K", sizeOf(keys) * sample.d], ["V", sizeOf(keys) * sample.dV]];
      w.moved.read("k", sizeOf(keys) * sample.d).read("v", sizeOf(keys) * sample.dV);
      w.step("load_kv", "Load a block of keys and values",
        `Keys and values ${rangeText(keys)} come on chip; the block before them is forgotten.`,
        { rows, keys, chip });
      addTile(w, rows, keys, [...chip, ["S, P", n * sizeOf(keys)]]);
    }
    const details = w.eachRow(rows, (i) => {
      const l = w.state.l[i];
      w.normalise(i);
      return l > 0 ? `O = O / ${text(l, 3)}, LSE = ${text(w.state.m[i])} + log ${text(l, 3)} = ` +
        text(w.state.lse[i], 3) : "saw no key: O = 0, LSE = −∞";
    });
    w.step("normalise", "Divide once, at the end",
      "Until now O was not normalised. One division by l makes the weights sum to one; it agrees " +
      "with the fp64 reference (the ticks).", { rows, details, chip: sums });
    w.moved.write("o", n * sample.dV).write("lse", n);
    w.step("store", "Write the output",
      "O and one number a row, LSE, go to memory. The backward pass needs nothing else of the " +
      "softmax.", { rows, chip: sums });
  }
  return w;
}
