// Softmax of rows that lie in memory: three passes, and one fewer with a running sum.
"use strict";

const kThreePass = {
  name: "three_pass",
  title: "Three-pass softmax",
  paper: "Milakov and Gimelshein 2018, algorithm 2 (safe softmax)",
  idea: "The textbook way, safe from overflow: find the maximum, then the sum of e^(x − m), then " +
    "divide. Each element is read three times and written once.",
  view: { left: [], top: [], bottom: ["v"], right: ["m", "l", "o"] },
  listing: [
    ["scores", "input", "x = the scores of a row, in memory"],
    ["maximum", "lines 1–4", "pass 1: m ← max(m, x)"],
    ["sum", "lines 5–8", "pass 2: l ← l + e^(x − m)"],
    ["divide", "lines 9–11", "pass 3: y ← e^(x − m) / l"],
    ["product", "after it", "O ← y V"],
  ],
  run: runThreePass,
};

const kOnline = {
  name: "online",
  title: "Online softmax",
  paper: "Milakov and Gimelshein 2018, algorithm 3 (online normalizer)",
  idea: "Maximum and sum in one pass: when a larger score comes, the sum so far shrinks by " +
    "α = e^(m old − m new). Two reads and a write an element instead of three and one. " +
    "FlashAttention is this idea carried on to the product with V.",
  view: { left: [], top: [], bottom: ["v"], right: ["m", "alpha", "l", "o"] },
  listing: [
    ["scores", "input", "x = the scores of a row, in memory"],
    ["begin", "lines 1, 2", "m ← −∞, l ← 0"],
    ["maximum", "line 4", "for each part of the row: m new ← max(m, x)"],
    ["sum", "line 5", "  l ← l e^(m − m new) + sum of e^(x − m new)"],
    ["divide", "lines 7–9", "once more: y ← e^(x − m) / l"],
    ["product", "after it", "O ← y V"],
  ],
  run: runOnline,
};

function scoresInMemory(sample, blocks) {
  const w = new Walk(sample, blocks);
  const all = [0, sample.nq];
  w.computeScores(all, [0, sample.nk]);
  w.begin(all);
  w.step("scores", "Rows of scores", "Each row is one query's scores. They are in memory; a part " +
    "of every row is looked at in each step.", { rows: all });
  return w;
}

// y = P, normalised, and what it is for.
function divideAndMultiply(w) {
  const { sample } = w;
  const all = [0, sample.nq];
  const sums = w.state.l.slice();
  for (const keys of w.keyBlocks) {
    w.moved.read("s", sample.nq * sizeOf(keys)).write("p", sample.nq * sizeOf(keys));
    w.center = "P";
    const details = w.eachRow(all, (i) => {
      w.exponentiate(i, keys, w.state.m[i]);
      for (let j = keys[0]; j < keys[1] && sums[i] > 0; ++j) w.state.s[i * sample.nk + j] /= sums[i];
      return `weights e^(x − ${text(w.state.m[i])}) / ${text(sums[i], 3)}`;
    });
    w.step("divide", "Weights", `The scores of keys ${rangeText(keys)} are read again; their weights ` +
      "are written.", { rows: all, keys, details });
  }
  w.moved.read("p", sample.nq * sample.nk).read("v", sample.nk * sample.dV)
    .write("o", sample.nq * sample.dV);
  const details = w.eachRow(all, (i) => {
    w.accumulate(i, [0, sample.nk]);
    w.state.lse[i] = sums[i] > 0 ? w.state.m[i] + Math.log(sums[i]) : -Infinity;
    return `weights sum to ${sums[i] > 0 ? 1 : 0}${sample.sink > -Infinity ? ", the sink's included" : ""}`;
  });
  w.step("product", "What the weights are for", "The output is the average of the values with these " +
    "weights.", { rows: all, keys: [0, sample.nk], details });
}

function runThreePass(sample, blocks) {
  const w = scoresInMemory(sample, blocks);
  const all = [0, sample.nq];
  const { m, l } = w.state;
  for (const keys of w.keyBlocks) {
    w.moved.read("s", sample.nq * sizeOf(keys));
    const details = w.eachRow(all, (i) => {
      const old = m[i];
      m[i] = Math.max(old, w.rowMax(i, keys));
      return `m = max(${text(old)}, ${text(w.rowMax(i, keys))}) = ${text(m[i])}`;
    });
    w.step("maximum", "Pass 1: the maximum", `Keys ${rangeText(keys)} are read for their largest score.`,
      { rows: all, keys, details });
  }
  for (let i = 0; i < sample.nq; ++i) {
    l[i] = sample.sink === -Infinity ? 0 : Math.exp(sample.sink - m[i]);
  }
  for (const keys of w.keyBlocks) {
    w.moved.read("s", sample.nq * sizeOf(keys));
    const details = w.eachRow(all, (i) => {
      const old = l[i];
      for (let j = keys[0]; j < keys[1]; ++j) {
        const s = w.state.s[i * sample.nk + j];
        l[i] += s === -Infinity ? 0 : Math.exp(s - m[i]);
      }
      return `l = ${text(old, 3)} + ${text(l[i] - old, 3)} = ${text(l[i], 3)}`;
    });
    w.step("sum", "Pass 2: the sum", `Keys ${rangeText(keys)} are read a second time: now that the ` +
      "maximum is known, no exponential overflows.", { rows: all, keys, details });
  }
  divideAndMultiply(w);
  return w;
}

function runOnline(sample, blocks) {
  const w = scoresInMemory(sample, blocks);
  const all = [0, sample.nq];
  const { m, l, alpha } = w.state;
  w.step("begin", "Start with nothing", "Maximum and sum travel together along the row.", { rows: all });
  for (const keys of w.keyBlocks) {
    w.moved.read("s", sample.nq * sizeOf(keys));
    const before = m.slice();
    let details = w.eachRow(all, (i) => {
      m[i] = Math.max(m[i], w.rowMax(i, keys));
      alpha[i] = shrink(before[i], m[i]);
      return `m = max(${text(before[i])}, ${text(w.rowMax(i, keys))}) = ${text(m[i])}, ` +
        `α = ${text(alpha[i], 3)}`;
    });
    w.step("maximum", "New maxima", `Keys ${rangeText(keys)} are read. Where the maximum rises, α is ` +
      "below 1.", { rows: all, keys, details });
    details = w.eachRow(all, (i) => {
      const old = l[i];
      let sum = 0;
      for (let j = keys[0]; j < keys[1]; ++j) {
        const s = w.state.s[i * sample.nk + j];
        sum += s === -Infinity ? 0 : Math.exp(s - m[i]);
      }
      l[i] = old * alpha[i] + sum;
      return `l = ${text(alpha[i], 3)} · ${text(old, 3)} + ${text(sum, 3)} = ${text(l[i], 3)}`;
    });
    w.step("sum", "Rescale and add", "The sum so far shrinks to the new maximum; the new terms join it.",
      { rows: all, keys, details });
    alpha.fill(NaN);
  }
  divideAndMultiply(w);
  return w;
}
