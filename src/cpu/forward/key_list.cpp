// FlashAttention-2, algorithm 1 (Dao 2023), over keys by list (Problem::key_list): the query heads
// of a K, V head that share a query are Q blocks, and the rows of K and V that the query's list
// names are gathered block by block, in the order of the list. Where there are few queries, parts
// of a list are tasks, whose results are merged.
#include <cmath>

#include "cpu/forward/forward.hpp"
#include "cpu/forward/merge_parts.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/listed_keys.hpp"
#include "cpu/nonfinite.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

// scale[j] <- the scale of entry j, 1 where it has no key; null where there are none.
const float* listed_scales(const Attention& a, const Tensor& of, const core::Sequence& sequence,
                           int head_k, const ListedKeys& keys, float* scale) {
  if (!of.given()) return nullptr;
  const core::Scales scales(a.problem, a.inputs, of, sequence.batch);
  for (int j = 0; j < keys.count; ++j) {
    scale[j] = keys.key[j] < 0 ? 1.0f : scales.at(keys.key[j], head_k);
  }
  return scale;
}

// m, l and the unnormalised O of the Q blocks, all of one query, take in those keys.
void attend_keys(const Attention& a, const core::Sequence& sequence, int head_k,
                 const ListedKeys& keys, int blocks, GroupScratch& s) {
  const std::byte* row[kBlockK];
  float scale_k[kBlockK], scale_v[kBlockK];
  keys.find(sequence.k, head_k, row);
  a.ops.pack_k(row, keys.count, a.dim, a.type_k,
               listed_scales(a, a.inputs.scale_k, sequence, head_k, keys, scale_k), s.keys.k);
  keys.find(sequence.v, head_k, row);
  const float* const scales_v = listed_scales(a, a.inputs.scale_v, sequence, head_k, keys, scale_v);
  // P may be 0 where a key is hidden or K gives a score of -inf: rows of V that are not finite are
  // added apart (nonfinite.hpp).
  std::uint64_t apart = a.ops.nonfinite_rows(row, keys.count, a.dim_v, a.type_v);
  for (int j = 0; scales_v != nullptr && j < keys.count; ++j) {
    apart |= std::uint64_t{!std::isfinite(scales_v[j])} << j;
  }
  const std::byte* packed[kBlockK];
  std::copy_n(row, keys.count, packed);
  for_each_bit(apart, keys.count, [&](int j) { packed[j] = nullptr; });
  a.ops.pack_v(packed, keys.count, a.dim_v, a.type_v, scales_v, s.keys.v);
  for (int first = 0; first < blocks; first += a.ops.q_blocks) {
    const int tiles = std::min(a.ops.q_blocks, blocks - first);
    ScoreTile scores[kMaxRegisterBlocks];
    for (int i = 0; i < tiles; ++i) {
      scores[i] = {s.blocks[first + i].q_t, s.tile[i].s, s.tile[i].row_max};
    }
    a.ops.scores(scores, tiles, s.keys.k, keys.count, a.dim);
    OutputTile output[kMaxRegisterBlocks];
    for (int i = 0; i < tiles; ++i) {
      QueryBlock& q = s.blocks[first + i];
      TileScratch& t = s.tile[i];
      modify_listed(a, q, keys, t);
      a.ops.row_max(t.s, keys.count, t.row_max);
      a.ops.softmax(t.s, keys.count, a.c(), t.row_max, nullptr, q.m, q.l, t.alpha, t.p);
      output[i] = {t.p, t.alpha, q.o_t};
    }
    a.ops.accumulate(output, tiles, s.keys.v, keys.count, a.dim_v);
    for_each_bit(apart, keys.count, [&](int j) {
      for (int i = 0; i < tiles; ++i) {
        float weight[kMaxRows];
        for (int r = 0; r < a.ops.rows; ++r) {
          weight[r] = operand_element(a, output[i].p, j, r);
        }
        add_outer(a, weight, row[j], a.dim_v, a.type_v, scales_v == nullptr ? 1.0f : scales_v[j],
                  output[i].o_t);
      }
    });
  }
}

// Rows of one query each.
RowTasks list_tasks(const Attention& a, std::int64_t rows_per_task, Workspace& workspace) {
  const std::int64_t pieces = core::ceil_div(std::int64_t{a.group}, rows_per_task);
  std::int64_t queries = 0;
  for (const core::Sequence& sequence : a.sequences) queries += sequence.length_q;
  RowTasks tasks(&workspace);
  tasks.reserve(static_cast<std::size_t>(queries * a.problem.heads_k * pieces));
  for (std::int64_t pair = 0; pair < pair_count(a); ++pair) {
    const std::int64_t rows = a.rows(pair_at(a, pair).sequence);
    for (std::int64_t query = 0; query < rows; query += a.group) {
      for (std::int64_t r = 0; r < a.group; r += rows_per_task) {
        tasks.push_back({pair, query + r, std::min(rows_per_task, a.group - r), 0});
      }
    }
  }
  return tasks;
}

}  // namespace

void forward_key_list(const Attention& a, const Plan& plan, const Outputs& outputs,
                      const Workers& workers) {
  Workspace& workspace = workers.workspace();
  const RowTasks tasks = list_tasks(a, plan.rows_per_task, workspace);
  const std::int64_t parts = plan.num_splits;
  const PartialIndex at{parts, core::ceil_div(plan.rows_per_task, a.ops.rows)};
  const auto count = static_cast<std::int64_t>(tasks.size());
  const Partials partials(workspace, parts > 1 ? core::Size(count) * parts * at.blocks_per_task : 0,
                          a.dim_v, a.ops.rows);
  {
    const Workspace::Scope of_parts(workspace);
    const WorkerScratch<GroupScratch> scratch(workspace, workers.count(), group_scratch(a));
    workers.parallel_for(count * parts, [&](std::int64_t index, int worker) {
      const RowTask& task = tasks[static_cast<std::size_t>(index / parts)];
      const auto [sequence, head_k] = pair_at(a, task.pair);
      GroupScratch s = scratch.of(worker);
      const TileState tile_state(a.ops);
      const core::KeyList list =
          core::key_list(a.problem, a.inputs, sequence, task.row0 / a.group, head_k);
      const KeyRange range = split_range(list.count, parts, index % parts);
      const int blocks = load_query_group(a, sequence, head_k, task.row0, task.rows, s.blocks);
      for (std::int64_t entry = range.begin; entry < range.end; entry += kBlockK) {
        const ListedKeys keys(list, entry);
        if (keys.any) attend_keys(a, sequence, head_k, keys, blocks, s);
      }
      for (int i = 0; i < blocks; ++i) {
        QueryBlock& q = s.blocks[i];
        if (parts == 1) {
          a.store_block(sequence, q, outputs);
        } else {
          save_partial(a, q, q.o_t, partials[at(index / parts, index % parts, i)]);
        }
      }
    });
  }
  if (parts == 1) return;
  merge_parts(a, tasks, {partials, at}, outputs, workers,
              [&](const core::Sequence&) { return static_cast<int>(parts); });
}

}  // namespace attn::cpu
