// The backward pass of FlashAttention-2: P is computed again from LSE, tile by tile.
"use strict";

const kBackward = {
  name: "backward",
  title: "Backward",
  paper: "Dao 2023, FlashAttention-2, algorithm 2",
  idea: "Gradients without the N × N matrices: with LSE of each row at hand, P = e^(S − LSE) is " +
    "computed again where it is needed. A block of keys stays on chip and gathers dK and dV; dQ of the " +
    "queries that pass by is updated in memory.",
  view: { left: ["q", "do"], top: ["k", "v"], bottom: ["dk", "dv"], right: ["lse", "delta", "dq"] },
  listing: [
    ["begin", "line 3", "in memory: dQ ← 0"],
    ["delta", "line 4", "D ← row sums of dO ∘ O; write D"],
    ["load_kv", "lines 5–7", "for each block of keys j: load K j, V j; dK, dV ← 0"],
    ["skip", "lines 8, 9", "  for each block of queries i whose tile is not empty:"],
    ["load_q", "line 9", "    load Q i, dO i, dQ i, LSE i, D i"],
    ["recompute", "lines 10, 11", "    S ← Q i K jᵀ;  P ← e^(S − LSE)"],
    ["dv", "line 12", "    dV ← dV + Pᵀ dO"],
    ["ds", "lines 13, 14", "    dP ← dO Vᵀ;  dS ← P ∘ (dP − D)"],
    ["dq", "line 15", "    dQ i ← dQ i + dS K; write it"],
    ["dk", "line 16", "    dK ← dK + dSᵀ Q"],
    ["store", "line 18", "  write dK j and dV j"],
  ],
  run: runBackward,
};

function runBackward(sample, blocks) {
  const w = new Walk(sample, blocks);
  const { nq, nk, d, dV } = sample;
  w.backward = true;
  Object.assign(w.state, {
    dq: new Float64Array(nq * d), dk: new Float64Array(nk * d), dv: new Float64Array(nk * dV),
    delta: w.rows(NaN), lse: sample.reference.lse.slice(), o: sample.reference.o.slice(),
  });
  const all = [0, nq];
  w.moved.write("dq", nq * d);
  w.step("begin", "What forward left", "O and LSE of the forward pass are in memory. dQ starts as zeros.",
    { rows: all });
  w.moved.read("do", nq * dV).read("o", nq * dV).write("d", nq);
  const details = w.eachRow(all, (i) => {
    let sum = 0;
    for (let c = 0; c < dV; ++c) sum += sample.d_o[i * dV + c] * w.state.o[i * dV + c];
    w.state.delta[i] = sum;
    return `D = dO · O = ${text(sum, 3)}`;
  });
  w.step("delta", "One number a row", "D is what the softmax subtracts from every dP of a row. It takes " +
    "the place of a sum over all keys.", { rows: all, details });
  for (const keys of w.keyBlocks) {
    const n = sizeOf(keys);
    const own = [["K", n * d], ["V", n * dV], ["dK", n * d], ["dV", n * dV]];
    w.moved.read("k", n * d).read("v", n * dV);
    w.step("load_kv", "Load a block of keys and values", `Keys ${rangeText(keys)} stay on chip and gather ` +
      "their gradients.", { keys, chip: own });
    for (const rows of w.rowBlocks) {
      if (sample.coverage(rows, keys) === "empty") {
        w.skipped.push([rows, keys]);
        w.step("skip", "Skip an empty tile", `None of queries ${rangeText(rows)} sees any of keys ` +
          `${rangeText(keys)}.`, { rows, keys, chip: own });
        continue;
      }
      backwardTile(w, rows, keys, own);
    }
    w.moved.write("dk", n * d).write("dv", n * dV);
    w.step("store", "Write dK and dV", "All queries have passed: the gradients of this block are complete.",
      { keys, chip: own });
  }
  return w;
}

function backwardTile(w, rows, keys, own) {
  const { sample } = w;
  const { nk, d, dV } = sample;
  const { s, lse, delta, dq, dk, dv } = w.state;
  const n = sizeOf(rows);
  const chip = [...own, ["Q", n * d], ["dO", n * dV], ["dQ", n * d], ["LSE, D", 2 * n]];
  const tile = { rows, keys, chip: [...chip, ["S, P, dS", n * sizeOf(keys)]] };
  const each = (f) => {
    for (let i = rows[0]; i < rows[1]; ++i) for (let j = keys[0]; j < keys[1]; ++j) f(i, j, i * nk + j);
  };
  w.moved.read("q", n * d).read("do", n * dV).read("dq", n * d).read("lse", n).read("d", n);
  w.step("load_q", "Load a block of queries", `${queriesText(rows, "come")} with dO, dQ, LSE and D.`,
    { rows, keys, chip });
  w.center = "P";
  each((i, j, at) => { s[at] = sample.sees(i, j) ? Math.exp(sample.score(i, j) - lse[i]) : 0; });
  w.step("recompute", "The weights again", "One product and one exponential give P as forward had it, " +
    "already normalised: LSE holds maximum and sum.", tile);
  each((i, j, at) => {
    for (let c = 0; c < dV; ++c) dv[j * dV + c] += s[at] * sample.factor(i, j) * sample.d_o[i * dV + c];
  });
  w.step("dv", "Gradient of V", "A value gets the gradient of every output that took a share of it.", tile);
  w.center = "dS";
  each((i, j, at) => {
    let dp = 0;
    for (let c = 0; c < dV; ++c) dp += sample.d_o[i * dV + c] * sample.v[j * dV + c];
    s[at] *= sample.factor(i, j) * dp - delta[i];
    // Of the product Q K^T: through the score expression.
    s[at] = s[at] === 0 ? 0 : s[at] * sample.slope(i, j);
  });
  w.step("ds", "Through the softmax", "dP − D: how much more a key would have helped than the average of " +
    "its row; times P." + (sample.slopes ? " Then through the score formula." : ""), tile);
  each((i, j, at) => {
    for (let c = 0; c < d; ++c) dq[i * d + c] += sample.scale * s[at] * sample.k[j * d + c];
  });
  w.moved.write("dq", n * d);
  w.step("dq", "Gradient of Q", "dQ was loaded, gets this tile's share, and goes back to memory.", tile);
  each((i, j, at) => {
    for (let c = 0; c < d; ++c) dk[j * d + c] += sample.scale * s[at] * sample.q[i * d + c];
  });
  w.step("dk", "Gradient of K", "dK stays on chip and gathers.", tile);
}
