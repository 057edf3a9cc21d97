// Decoding: few queries and many keys, which are split among workers and merged.
"use strict";

const kDecoding = {
  name: "flash_decoding",
  title: "Decoding with splits",
  paper: "Flash-Decoding (Dao, Haziza, Massa, Sizov 2023); the merge is section 3.1 of FlashAttention",
  idea: "When one token asks, there is only one block of queries, and all but one worker would idle. " +
    "So the keys are split: each worker runs FlashAttention-2 over its part and leaves O and LSE; a " +
    "last step weighs the parts by e^(LSE of the part − LSE of all).",
  view: { left: ["q"], top: ["k"], bottom: ["v"], right: ["m", "l", "o", "parts"] },
  listing: [
    ["split", "step 1", "split the keys into parts; one worker each"],
    ["load", "step 2", "for each part: load Q and the part's K j, V j"],
    ["scores", "step 2", "    S ← Q K jᵀ, masked"],
    ["maximum", "step 2", "    m ← max(m, row maxima); α ← e^(m old − m new)"],
    ["rescale", "step 2", "    l ← α l,  O ← α O"],
    ["add", "step 2", "    l ← l + row sums of P;  O ← O + P V j"],
    ["store", "step 2", "  write O and LSE of the part"],
    ["weigh", "step 3", "LSE ← log of the sum of e^LSE of the parts"],
    ["merge", "step 3", "O ← sum of e^(LSE part − LSE) · O part"],
  ],
  run: runDecoding,
};

function runDecoding(sample, blocks) {
  const w = new Walk(sample, blocks);
  const splits = Math.min(w.keyBlocks.length, 3);
  const perSplit = Math.ceil(w.keyBlocks.length / splits);
  const parts = [];
  for (let s = 0; s * perSplit < w.keyBlocks.length; ++s) {
    parts.push({ keyBlocks: w.keyBlocks.slice(s * perSplit, (s + 1) * perSplit) });
  }
  w.state.parts = new Float64Array(sample.nq * parts.length).fill(NaN);
  w.partCount = parts.length;
  const all = [0, sample.nq];
  w.step("split", "Split the keys", `${sample.nk} keys in ${parts.length} parts. The parts do not wait ` +
    "for each other; here they are shown one after the other.", { rows: all });
  parts.forEach((part, index) => runPart(w, part, index));
  merge(w, parts);
  return w;
}

function runPart(w, part, index) {
  const { sample } = w;
  const { o, lse, parts } = w.state;
  w.begin([0, sample.nq], index === 0);
  part.o = new Float64Array(o.length);
  part.lse = w.rows(-Infinity);
  for (const rows of w.rowBlocks) {
    const own = [["Q", sizeOf(rows) * sample.d], ["O", sizeOf(rows) * sample.dV], ["m, l", 2 * sizeOf(rows)]];
    w.moved.read("q", sizeOf(rows) * sample.d);
    for (const keys of part.keyBlocks) {
      if (sample.coverage(rows, keys) === "empty") {
        w.skipped.push([rows, keys]);
        continue;
      }
      const chip = [...own, ["K", sizeOf(keys) * sample.d], ["V", sizeOf(keys) * sample.dV]];
      w.moved.read("k", sizeOf(keys) * sample.d).read("v", sizeOf(keys) * sample.dV);
      w.step("load", `Part ${index + 1}: load keys and values`, `Worker ${index + 1} loads keys ` +
        `${rangeText(keys)}.`, { rows, keys, chip });
      addTile(w, rows, keys, [...chip, ["S, P", sizeOf(rows) * sizeOf(keys)]]);
    }
    const details = w.eachRow(rows, (i) => {
      w.normalise(i);
      part.lse[i] = parts[i * w.partCount + index] = lse[i];
      return `LSE of part ${index + 1} = ${text(lse[i], 3)}`;
    });
    part.o.set(o.subarray(rows[0] * sample.dV, rows[1] * sample.dV), rows[0] * sample.dV);
    w.moved.write("partial", sizeOf(rows) * (sample.dV + 1));
    w.step("store", `Part ${index + 1} is done`, "The part's output, normalised on its own, and its LSE " +
      "go to memory.", { rows, details, chip: own });
  }
}

function merge(w, parts) {
  const { sample } = w;
  const { o, m, l, lse } = w.state;
  const all = [0, sample.nq];
  w.moved.read("partial", parts.length * sample.nq * (sample.dV + 1));
  o.fill(0);
  let details = w.eachRow(all, (i) => {
    m[i] = Math.max(...parts.map((part) => part.lse[i]));
    l[i] = parts.reduce((sum, part) =>
      sum + (part.lse[i] === -Infinity ? 0 : Math.exp(part.lse[i] - m[i])), 0);
    lse[i] = l[i] > 0 ? m[i] + Math.log(l[i]) : -Infinity;
    return `LSE = log(${parts.map((part) => `e^${text(part.lse[i])}`).join(" + ")}) = ${text(lse[i], 3)}`;
  });
  w.step("weigh", "Weigh the parts", "Each part knows how much weight it saw: its LSE. Together they " +
    "give the LSE of the whole row.", { rows: all, details });
  details = w.eachRow(all, (i) => {
    const weights = parts.map((part) => (part.lse[i] === -Infinity ? 0 : Math.exp(part.lse[i] - lse[i])));
    parts.forEach((part, p) => {
      for (let c = 0; c < sample.dV; ++c) o[i * sample.dV + c] += weights[p] * part.o[i * sample.dV + c];
    });
    return `O = ${weights.map((x, p) => `${text(x, 3)} O${p + 1}`).join(" + ")}`;
  });
  w.moved.write("o", sample.nq * sample.dV).write("lse", sample.nq);
  w.step("merge", "Merge", "The average of the parts with these weights is exactly the output over all " +
    "keys.", { rows: all, details });
}
