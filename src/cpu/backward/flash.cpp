// FlashAttention-2, algorithm 2: P is recomputed from LSE tile by tile. Tasks are (sequence, K, V
// head, range of keys). A task keeps a chunk of K, V, dK and dV in f32 and runs over all Q blocks;
// dQ of a Q block is accumulated, transposed, in a workspace of its own for each range and the
// ranges are added in order at the end. So no two tasks write to the same memory and the sums do
// not depend on the number of threads.
#include <algorithm>

#include "cpu/backward/backward.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

// Keys of a chunk: K, V, dK and dV of 512 keys at d = 64 are 512 KB, half of a 1 MB L2; a Q block
// is packed once a chunk, which costs about half of one product and is shared by 8 tiles of 5
// products.
constexpr int kChunkKeys = 512;

struct Task {
  std::int32_t batch = 0;
  std::int32_t head_k = 0;
  std::int32_t split = 0;
  std::int64_t cost = 0;
};

struct Scratch {
  int dim = 0, dim_v = 0;
  GradientTiles tiles;
  GradientBlock* block = nullptr;
  float *k = nullptr, *v = nullptr, *dk = nullptr,
        *dv = nullptr;  // [kChunkKeys][leading dimension]

  void carve(Carver& c) {
    tiles.carve(c);
    c.take(block, 1);
    GradientBlock placed;
    placed.carve(c, dim, dim_v);
    if (block != nullptr) *block = placed;
    const auto k_floats = static_cast<std::size_t>(kChunkKeys * leading_dim(dim));
    const auto v_floats = static_cast<std::size_t>(kChunkKeys * leading_dim(dim_v));
    c.take(k, k_floats);
    c.take(dk, k_floats);
    c.take(v, v_floats);
    c.take(dv, v_floats);
  }
};

// dQ^T of all Q blocks, [split][block][dim][rows].
struct QueryGradient {
  float* data;
  std::int64_t blocks;
  std::int64_t block_floats;
  float* block(std::int64_t split, std::int64_t i) const {
    return data + (split * blocks + i) * block_floats;
  }
};

std::vector<Task> range_tasks(const Attention& a, int splits) {
  std::vector<Task> tasks;
  for (const core::Sequence& sequence : a.sequences) {
    for (std::int32_t h = 0; h < a.problem.heads_k; ++h) {
      for (std::int32_t split = 0; split < splits; ++split) {
        const KeyRange keys = split_range(sequence.length_k, splits, split);
        tasks.push_back({sequence.batch, h, split, (keys.end - keys.begin) * a.rows(sequence)});
      }
    }
  }
  // Causal: the first keys are seen by most queries, so equal ranges are ordered costliest first as
  // they stand.
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& x, const Task& y) { return x.cost > y.cost; });
  return tasks;
}

// One chunk of keys against every Q block of the head.
void chunk_gradient(const Attention& a, const GradientContext& g, const core::Sequence& sequence,
                    int head_k, KeyRange keys, const QueryGradient& dq, std::int64_t split,
                    Scratch& s) {
  const int ld = leading_dim(a.dim);
  const int ld_v = leading_dim(a.dim_v);
  const auto count = static_cast<int>(keys.end - keys.begin);
  for (int j = 0; j < count; j += kBlockK) {
    KeyBlock block{0, 0, s.k + j * ld, s.v + j * ld_v};
    a.load_key_block(sequence, head_k, static_cast<int>(keys.begin) + j,
                     std::min(kBlockK, count - j), block);
  }
  std::fill_n(s.dk, count * ld, 0.0f);
  std::fill_n(s.dv, count * ld_v, 0.0f);
  const std::int64_t blocks = g.blocks_per_head(sequence.batch);
  const std::int64_t first = g.first_block(sequence.batch, head_k);
  for (std::int64_t i = 0; i < blocks; ++i) {
    GradientBlock& q = *s.block;
    bool loaded = false;
    const std::int64_t row0 = i * a.ops.rows;
    const expr::Tile rows =
        a.tile(sequence, head_k, row0, std::min<std::int64_t>(a.ops.rows, a.rows(sequence) - row0));
    for_visible_blocks(
        a, rows, keys.begin, keys.end, [&](int key0, int n, expr::Coverage coverage) {
          if (!loaded) g.load(sequence, head_k, i, q);
          loaded = true;
          const std::int64_t j = key0 - keys.begin;
          const KeyBlock block{key0, n, s.k + j * ld, s.v + j * ld_v};
          g.tile_gradient(q, block, coverage, s.tiles);
          a.ops.accumulate_rows(s.tiles.tile.s, q.do_rows, n, q.q.count, a.dim_v, s.dv + j * ld_v);
          a.ops.accumulate_rows(s.tiles.ds, q.q_rows, n, q.q.count, a.dim, s.dk + j * ld);
          a.ops.accumulate(s.tiles.ds, block.k, n, a.dim, nullptr, dq.block(split, first + i));
        });
  }
}

}  // namespace

void backward_flash(const Attention& a, const GradientContext& g, const Plan& plan,
                    const Gradients& gradients, Executor& executor) {
  const int splits = plan.num_splits;
  const std::vector<Task> tasks = range_tasks(a, splits);
  Scratch sizes;
  sizes.dim = a.dim;
  sizes.dim_v = a.dim_v;
  sizes.tiles = g.tiles();
  const WorkerScratch<Scratch> scratch(executor.concurrency(), sizes);
  const std::int64_t block_floats = std::int64_t{a.dim} * a.ops.rows;
  const AlignedBytes memory =
      allocate(static_cast<std::size_t>(splits * g.blocks() * block_floats) * sizeof(float));
  const QueryGradient dq{reinterpret_cast<float*>(memory.get()), g.blocks(), block_floats};

  executor.parallel_for(
      static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index, int worker) {
        const Task& task = tasks[static_cast<std::size_t>(index)];
        const core::Sequence& sequence = a.sequences[static_cast<std::size_t>(task.batch)];
        Scratch s = scratch.of(worker);
        std::fill_n(dq.block(task.split, g.first_block(task.batch, task.head_k)),
                    g.blocks_per_head(task.batch) * block_floats, 0.0f);
        const KeyRange range = split_range(sequence.length_k, splits, task.split);
        for (std::int64_t key = range.begin; key < range.end; key += kChunkKeys) {
          const KeyRange chunk{key, std::min<std::int64_t>(key + kChunkKeys, range.end)};
          chunk_gradient(a, g, sequence, task.head_k, chunk, dq, task.split, s);
          const auto key0 = static_cast<int>(key);
          const auto keys = static_cast<int>(chunk.end - chunk.begin);
          a.store_key_rows(gradients.dk, sequence, task.head_k, key0, keys, s.dk, a.dim, a.scale);
          a.store_key_rows(gradients.dv, sequence, task.head_k, key0, keys, s.dv, a.dim_v, 1.0f);
        }
      });
  if (!gradients.dq.given()) return;

  executor.parallel_for(a.problem.batch * a.problem.heads_k, [&](std::int64_t index, int worker) {
    const core::Sequence& sequence =
        a.sequences[static_cast<std::size_t>(index / a.problem.heads_k)];
    const int head_k = static_cast<int>(index % a.problem.heads_k);
    const core::Rows rows = core::rows_like_q(a.problem, a.inputs, gradients.dq, sequence.batch);
    QueryBlock& q = scratch.of(worker).block->q;
    for (std::int64_t i = 0; i < g.blocks_per_head(sequence.batch); ++i) {
      const std::int64_t block = g.first_block(sequence.batch, head_k) + i;
      float* sum = dq.block(0, block);
      for (int split = 1; split < splits; ++split) {
        const float* part = dq.block(split, block);
        for (std::int64_t e = 0; e < block_floats; ++e) sum[e] += part[e];
      }
      const std::int64_t row0 = i * a.ops.rows;
      const auto count =
          static_cast<int>(std::min<std::int64_t>(a.ops.rows, a.rows(sequence) - row0));
      a.describe_query_block(sequence, head_k, row0, count, q);
      a.store_query_rows(rows, q, sum, a.dim, a.scale);
    }
  });
}

}  // namespace attn::cpu
