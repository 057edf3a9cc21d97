// Flash-Decoding (Dao, Haziza, Massa, Sizov 2023): the keys are split into parts that run in
// parallel, then a second step merges the partial results. Few rows against a long cache read K and
// V in place (decode verbs); more rows use tiles.
#include "cpu/forward/forward.hpp"
#include "cpu/forward/partial.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

struct DecodeScratch {
  GroupScratch group;
  float* q = nullptr;  // [kMaxDecodeRows][leading_dim(dim)], scaled
  float* o = nullptr;  // [kMaxDecodeRows][leading_dim(dim_v)]

  void carve(Carver& c) {
    group.carve(c);
    c.take(q, static_cast<std::size_t>(kMaxDecodeRows * leading_dim(group.dim)));
    c.take(o, static_cast<std::size_t>(kMaxDecodeRows * leading_dim(group.dim_v)));
  }
};

// Asks for rows that are read soon. The strides of a cache ([seqlen, heads, head_dim]) defeat the
// hardware prefetcher.
void prefetch(const std::byte* const* row, int count, std::size_t bytes) {
  for (int j = 0; j < count; ++j) {
    for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(row[j] + i);
  }
}

// One part of the keys for at most kMaxDecodeRows rows: the loop of attend() with dims in lanes.
// Leaves the result in s.group.blocks[0].
void attend_few_rows(const Attention& a, const core::Sequence& sequence, int head_k,
                     const RowTask& task, const KeyRange& range, DecodeScratch& s) {
  QueryBlock& block = s.group.blocks[0];
  TileScratch& t = s.group.tile;
  const int count = static_cast<int>(task.rows);
  const int rows = a.ops.rows;
  const int ld = leading_dim(a.dim);
  const int ld_v = leading_dim(a.dim_v);
  const DType dtype = a.problem.dtype;
  a.describe_query_block(sequence, head_k, task.row0, count, block);
  const std::byte* row[kMaxRows];
  for (int r = 0; r < count; ++r) row[r] = sequence.q.row(block.query[r], block.head[r]);
  a.ops.pack_k(row, count, a.dim, dtype, s.q);
  for (int i = 0; i < count * ld; ++i) s.q[i] *= a.q_scale();
  std::fill_n(s.o, count * ld_v, 0.0f);
  std::fill_n(t.s, kBlockK * rows, 0.0f);  // lanes past count

  for_visible_blocks(a, block.tile, range.begin, range.end,
                     [&](int key0, int keys, expr::Coverage coverage) {
                       const std::byte* k[kBlockK];
                       const std::byte* v[kBlockK];
                       for (int j = 0; j < keys; ++j) {
                         k[j] = sequence.k.row(key0 + j, head_k);
                         v[j] = sequence.v.row(key0 + j, head_k);
                       }
                       prefetch(v, keys, static_cast<std::size_t>(a.dim_v) * size_of(dtype));
                       a.ops.decode_scores(s.q, count, k, keys, a.dim, dtype, t.s);
                       a.modify(block, key0, keys, coverage, t);
                       a.ops.row_max(t.s, keys, t.row_max);
                       a.ops.softmax(t.s, keys, a.c(), t.row_max, a.keep(block, key0, keys, t),
                                     block.m, block.l, t.alpha, t.s);
                       a.ops.decode_accumulate(t.s, count, v, keys, a.dim_v, dtype, t.alpha, s.o);
                     });
  for (int d = 0; d < a.dim_v; ++d) {
    for (int r = 0; r < rows; ++r) block.o_t[d * rows + r] = r < count ? s.o[r * ld_v + d] : 0.0f;
  }
}

}  // namespace

void forward_flash_decoding(const Attention& a, const Plan& plan, const Outputs& outputs,
                            Executor& executor) {
  const std::vector<RowTask> tasks = row_tasks(a, plan.rows_per_task);
  const std::int64_t splits = plan.num_splits;
  const bool few_rows = plan.rows_per_task <= kMaxDecodeRows;
  DecodeScratch sizes;
  sizes.group = group_scratch(a);
  const WorkerScratch<DecodeScratch> scratch(executor.concurrency(), sizes);
  const auto count = static_cast<std::int64_t>(tasks.size());
  const std::int64_t blocks_per_task = (plan.rows_per_task + a.ops.rows - 1) / a.ops.rows;
  const Partials partials(count * splits * blocks_per_task, a.dim_v, a.ops.rows);

  executor.parallel_for(count * splits, [&](std::int64_t index, int worker) {
    const RowTask& task = tasks[static_cast<std::size_t>(index / splits)];
    const auto [sequence, head_k] = pair_at(a, task.pair);
    const KeyRange range = split_range(sequence.length_k, splits, index % splits);
    DecodeScratch s = scratch.of(worker);
    int blocks = 1;
    if (few_rows) {
      attend_few_rows(a, sequence, head_k, task, range, s);
    } else {
      blocks = load_query_group(a, sequence, head_k, task.row0, task.rows, s.group);
      attend(a, sequence, head_k, a.tile(sequence, head_k, task.row0, task.rows), blocks,
             range.begin, range.end, PackedKeys(a, sequence, nullptr), s.group);
    }
    for (int i = 0; i < blocks; ++i) {
      save_partial(a, s.group.blocks[i], partials[index * blocks_per_task + i]);
    }
  });

  executor.parallel_for(count, [&](std::int64_t index, int worker) {
    const RowTask& task = tasks[static_cast<std::size_t>(index)];
    const auto [sequence, head_k] = pair_at(a, task.pair);
    DecodeScratch s = scratch.of(worker);
    QueryBlock& q = s.group.blocks[0];
    for (std::int64_t i = 0; i * a.ops.rows < task.rows; ++i) {
      const std::int64_t row0 = i * a.ops.rows;
      a.describe_query_block(sequence, head_k, task.row0 + row0,
                             static_cast<int>(std::min<std::int64_t>(task.rows - row0, a.ops.rows)),
                             q);
      merge_partials(a, partials, index * splits * blocks_per_task + i, blocks_per_task,
                     static_cast<int>(splits), q);
      a.store_block(sequence, q, outputs);
    }
  });
}

}  // namespace attn::cpu
