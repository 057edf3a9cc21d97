// Bytes that each algorithm moves between slow and fast memory, in closed form. Every term is a line
// of the published algorithm that loads or stores; `attn io` counts the same.
"use strict";

// Elements by operand; statistics of a row (l and m, or LSE: "lse"; rowsum(dO * O): "d"; partial
// results of splits: "partial") are float32, everything else has the problem's type.
class Traffic {
  constructor(dtypeBytes) {
    this.dtypeBytes = dtypeBytes;
    this.operands = {};
  }
  of(operand) {
    this.operands[operand] ??= { read: 0, written: 0 };
    return this.operands[operand];
  }
  read(operand, elements) {
    this.of(operand).read += elements;
    return this;
  }
  write(operand, elements) {
    this.of(operand).written += elements;
    return this;
  }
  elementBytes(operand) {
    return ["lse", "d", "partial"].includes(operand) ? 4 : this.dtypeBytes;
  }
  sum(direction) {
    return Object.entries(this.operands).reduce(
      (sum, [operand, moved]) => sum + moved[direction] * this.elementBytes(operand), 0);
  }
  get bytesRead() { return this.sum("read"); }
  get bytesWritten() { return this.sum("written"); }
  get bytes() { return this.bytesRead + this.bytesWritten; }
  copy() {
    const copy = new Traffic(this.dtypeBytes);
    for (const [name, { read, written }] of Object.entries(this.operands)) {
      copy.operands[name] = { read, written };
    }
    return copy;
  }
}

// Sizes of a problem: lengths of a sequence, columns, heads of all sequences together.
function sizesOf(problem) {
  return {
    heads: problem.batch * problem.heads_q, headsK: problem.batch * problem.heads_k,
    queries: problem.seqlen_q, keys: problem.seqlen_k, d: problem.head_dim, dV: problem.head_dim_v,
    dtypeBytes: problem.dtype_bytes,
  };
}

// Rows of Q, summed over all tiles visited, and keys likewise. FlashAttention visits every tile and
// masks its scores; FlashAttention-2 and the block-sparse form leave out those that are empty.
function visits(algorithm, size, tiling) {
  if (algorithm === "flash_attention_2" || algorithm === "block_sparse") return tiling.counts;
  return {
    queries: size.heads * size.queries * Math.ceil(size.keys / tiling.block_k),
    keys: size.heads * size.keys * Math.ceil(size.queries / tiling.block_q),
  };
}

const kModels = {
  forward: {
    standard: (t, n) => t
      .read("q", n.q).read("k", n.k).write("s", n.s)
      .read("s", n.s).write("p", n.s)
      .read("p", n.s).read("v", n.v).write("o", n.o),
    flash_attention: (t, n, visited, size) => t
      .write("o", n.o).write("lse", 2 * n.rows)
      .read("k", n.k).read("v", n.v)
      .read("q", visited.queries * size.d)
      .read("o", visited.queries * size.dV).read("lse", 2 * visited.queries)
      .write("o", visited.queries * size.dV).write("lse", 2 * visited.queries),
    flash_attention_2: (t, n, visited, size) => t
      .read("q", n.q)
      .read("k", visited.keys * size.d).read("v", visited.keys * size.dV)
      .write("o", n.o).write("lse", n.rows),
  },
  backward: {
    standard: (t, n) => t
      .read("p", n.s).read("do", n.o).write("dv", n.v)
      .read("do", n.o).read("v", n.v).write("dp", n.s)
      .read("p", n.s).read("dp", n.s).write("ds", n.s)
      .read("ds", n.s).read("k", n.k).write("dq", n.q)
      .read("ds", n.s).read("q", n.q).write("dk", n.k),
    flash_attention: (t, n, visited, size) => t
      .write("dq", n.q).write("dk", n.k).write("dv", n.v)
      .read("k", n.k).read("v", n.v)
      .read("q", visited.queries * size.d).read("o", visited.queries * size.dV)
      .read("do", visited.queries * size.dV).read("dq", visited.queries * size.d)
      .read("lse", 2 * visited.queries).write("dq", visited.queries * size.d)
      .write("dk", n.k).write("dv", n.v),
    flash_attention_2: (t, n, visited, size) => t
      .write("dq", n.q)
      .read("do", n.o).read("o", n.o).write("d", n.rows)
      .read("k", n.k).read("v", n.v)
      .read("q", visited.queries * size.d).read("do", visited.queries * size.dV)
      .read("dq", visited.queries * size.d)
      .read("lse", visited.queries).read("d", visited.queries)
      .write("dq", visited.queries * size.d)
      .write("dk", n.k).write("dv", n.v),
  },
};
for (const models of Object.values(kModels)) models.block_sparse = models.flash_attention;
const kModelled = ["standard", "flash_attention", "flash_attention_2", "block_sparse"];

// tiling: {block_q, block_k, counts: {queries, keys}} over all heads.
function modelOf(phase, algorithm, size, tiling) {
  const rows = size.heads * size.queries;
  const keys = size.heads * size.keys;
  const elements = {
    rows, q: rows * size.d, o: rows * size.dV, k: keys * size.d, v: keys * size.dV,
    s: rows * size.keys,
  };
  return kModels[phase][algorithm](
    new Traffic(size.dtypeBytes), elements, visits(algorithm, size, tiling), size);
}

// What no algorithm can go below: inputs and outputs, each moved once; K and V once for the query
// heads that share them.
function compulsoryOf(phase, size) {
  const rows = size.heads * size.queries;
  const keys = size.headsK * size.keys;
  const t = new Traffic(size.dtypeBytes);
  t.read("q", rows * size.d).read("k", keys * size.d).read("v", keys * size.dV);
  if (phase === "forward") return t.write("o", rows * size.dV).write("lse", rows);
  return t.read("o", rows * size.dV).read("do", rows * size.dV).read("lse", rows)
    .write("dq", rows * size.d).write("dk", keys * size.d).write("dv", keys * size.dV);
}

// What has to be in fast memory at once: blocks in the problem's type, sums in float32.
function onChip(phase, size, blockQ, blockK) {
  const e = size.dtypeBytes;
  const rows = Math.min(blockQ, size.queries);
  const keys = Math.min(blockK, size.keys);
  const parts = [
    ["Q", rows * size.d * e], ["K", keys * size.d * e], ["V", keys * size.dV * e],
    ["S, P", rows * keys * 4 * (phase === "forward" ? 1 : 2)],
  ];
  if (phase === "forward") return [...parts, ["O", rows * size.dV * 4], ["m, l", rows * 8]];
  return [...parts, ["dO", rows * size.dV * e], ["dQ", rows * size.d * 4],
    ["dK, dV", keys * (size.d + size.dV) * 4], ["LSE, D", rows * 8]];
}
