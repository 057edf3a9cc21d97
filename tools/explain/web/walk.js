// The sample, and a walk over it: an algorithm carried out with true numbers, every step recorded.
"use strict";

class Sample {
  constructor(data, dtypeBytes) {
    this.queries = data.queries;
    this.keys = data.keys;
    this.nq = data.queries.length;
    this.nk = data.keys.length;
    this.d = data.d;
    this.dV = data.d_v;
    this.scale = data.scale;
    this.sink = data.sink === null ? -Infinity : data.sink;
    this.dtypeBytes = dtypeBytes;
    for (const name of ["q", "k", "v", "d_o"]) this[name] = vectorOf(data[name]);
    this.visible = Array.from(data.visible, (c) => c === "1");
    this.scores = data.scores && vectorOf(data.scores);
    this.slopes = data.slopes && vectorOf(data.slopes);
    this.dropout = data.dropout && vectorOf(data.dropout);
    this.reference = {};
    for (const [name, values] of Object.entries(data.reference)) {
      this.reference[name] = vectorOf(values);
    }
  }
  get size() {
    return {
      heads: 1, headsK: 1, queries: this.nq, keys: this.nk, d: this.d, dV: this.dV,
      dtypeBytes: this.dtypeBytes,
    };
  }
  sees(i, j) { return this.visible[i * this.nk + j]; }
  // After scale, score expression and mask.
  score(i, j) {
    if (!this.sees(i, j)) return -Infinity;
    if (this.scores) return this.scores[i * this.nk + j];
    let sum = 0;
    for (let c = 0; c < this.d; ++c) sum += this.q[i * this.d + c] * this.k[j * this.d + c];
    return this.scale * sum;
  }
  slope(i, j) { return this.slopes ? this.slopes[i * this.nk + j] : 1; }
  factor(i, j) { return this.dropout ? this.dropout[i * this.nk + j] : 1; }
  coverage([r0, r1], [c0, c1]) {
    let seen = 0;
    for (let i = r0; i < r1; ++i) for (let j = c0; j < c1; ++j) seen += this.sees(i, j) ? 1 : 0;
    return seen === 0 ? "empty" : seen === (r1 - r0) * (c1 - c0) ? "full" : "mixed";
  }
  // As the library counts them for whole problems.
  tiling(blocks) {
    const counts = { queries: 0, keys: 0 };
    for (const rows of blocksOf(this.nq, blocks.q)) {
      for (const keys of blocksOf(this.nk, blocks.k)) {
        if (this.coverage(rows, keys) === "empty") continue;
        counts.queries += rows[1] - rows[0];
        counts.keys += keys[1] - keys[0];
      }
    }
    return { block_q: blocks.q, block_k: blocks.k, counts };
  }
}

// A step: {line: key of the listing, title, text, rows, keys: ranges or null, details: text of each
// row, state: copies of the vectors, before: those of the step before it, moved, chip}.
class Walk {
  constructor(sample, blocks) {
    this.sample = sample;
    this.blocks = blocks;
    this.rowBlocks = blocksOf(sample.nq, blocks.q);
    this.keyBlocks = blocksOf(sample.nk, blocks.k);
    this.steps = [];
    this.moved = new Traffic(sample.dtypeBytes);
    this.skipped = [];
    this.center = "S";
    this.state = {
      s: new Float64Array(sample.nq * sample.nk).fill(NaN),
      m: this.rows(-Infinity), l: this.rows(0), alpha: this.rows(NaN),
      o: new Float64Array(sample.nq * sample.dV), lse: this.rows(NaN),
    };
  }
  rows(value) { return new Float64Array(this.sample.nq).fill(value); }

  step(line, title, explanation, options = {}) {
    const state = {};
    for (const [name, values] of Object.entries(this.state)) state[name] = values.slice();
    const previous = this.steps.at(-1);
    this.steps.push({
      line, title, text: explanation, rows: null, keys: null, details: {}, chip: [],
      center: this.center, state, before: previous ? previous.state : state,
      moved: this.moved.copy(), skipped: this.skipped.slice(), ...options,
    });
  }
  // Calls f(i) and keeps the text it gives for each row.
  eachRow([r0, r1], f) {
    const details = {};
    for (let i = r0; i < r1; ++i) details[i] = f(i);
    return details;
  }
  // S of a tile; masked scores are -infinity.
  computeScores([r0, r1], [c0, c1]) {
    this.center = "S";
    for (let i = r0; i < r1; ++i) {
      for (let j = c0; j < c1; ++j) this.state.s[i * this.sample.nk + j] = this.sample.score(i, j);
    }
  }
  // A sink is a key without a value: m begins at it and l at 1.
  begin([r0, r1], withSink = true) {
    const { m, l, o } = this.state;
    const sink = withSink ? this.sample.sink : -Infinity;
    m.fill(sink, r0, r1);
    l.fill(sink === -Infinity ? 0 : 1, r0, r1);
    o.fill(0, r0 * this.sample.dV, r1 * this.sample.dV);
  }
  rowMax(i, [c0, c1]) {
    let max = -Infinity;
    for (let j = c0; j < c1; ++j) max = Math.max(max, this.state.s[i * this.sample.nk + j]);
    return max;
  }
  // S of the tile becomes P = exp(S - m); the sum of row i.
  exponentiate(i, [c0, c1], m) {
    let sum = 0;
    for (let j = c0; j < c1; ++j) {
      const at = i * this.sample.nk + j;
      const p = this.state.s[at] === -Infinity ? 0 : Math.exp(this.state.s[at] - m);
      this.state.s[at] = p;
      sum += p;
    }
    return sum;
  }
  // o[i] += P[i] V over the keys, dropped elements left out.
  accumulate(i, [c0, c1], factor = 1) {
    const { nk, dV, v } = this.sample;
    for (let j = c0; j < c1; ++j) {
      const p = factor * this.state.s[i * nk + j] * this.sample.factor(i, j);
      if (p === 0) continue;
      for (let c = 0; c < dV; ++c) this.state.o[i * dV + c] += p * v[j * dV + c];
    }
  }
  scaleRow(i, factor) {
    for (let c = 0; c < this.sample.dV; ++c) this.state.o[i * this.sample.dV + c] *= factor;
  }
  // O / l and LSE = m + log l; a row that saw nothing keeps O = 0.
  normalise(i) {
    const { m, l, lse } = this.state;
    if (l[i] > 0) this.scaleRow(i, 1 / l[i]);
    lse[i] = l[i] > 0 ? m[i] + Math.log(l[i]) : -Infinity;
  }
}

const sizeOf = ([begin, end]) => end - begin;
// "Query 5 meets", "Queries 5–8 meet".
const queriesText = (range, verb) =>
  sizeOf(range) === 1 ? `Query ${rangeText(range)} ${verb}s` : `Queries ${rangeText(range)} ${verb}`;
const rangeText = ([begin, end]) => (end - begin === 1 ? `${begin + 1}` : `${begin + 1}–${end}`);
