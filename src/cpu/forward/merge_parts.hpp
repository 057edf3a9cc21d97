// The results of tasks whose keys were cut into parts, each of which left a partial result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/forward/partial.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {

// Partials are numbered [task][part][Q block of the task]; a sequence may have fewer parts than
// `splits`.
struct PartialIndex {
  std::int64_t splits;
  std::int64_t blocks_per_task;
  std::int64_t operator()(std::int64_t task, std::int64_t part, std::int64_t block) const {
    return (task * splits + part) * blocks_per_task + block;
  }
};

struct NumberedPartials {
  const Partials& partials;
  const PartialIndex& at;
};

// The outputs of the tasks' rows <- the merge of their partials. parts(sequence): how many a task
// of it has; 0: its rows are stored already.
template <class Parts>
void merge_parts(const Attention& a, const RowTasks& tasks, const NumberedPartials& numbered,
                 const Outputs& outputs, const Workers& workers, const Parts& parts) {
  const Workspace::Scope of_merge(workers.workspace());
  const WorkerScratch<GroupScratch> scratch(workers.workspace(), workers.count(), group_scratch(a));
  const std::int64_t blocks = numbered.at.blocks_per_task;
  const auto count = static_cast<std::int64_t>(tasks.size());
  workers.parallel_for(count * blocks, [&](std::int64_t index, int worker) {
    const RowTask& task = tasks[static_cast<std::size_t>(index / blocks)];
    const std::int64_t block = index % blocks, first = block * a.ops.rows;
    const auto [sequence, head_k] = pair_at(a, task.pair);
    const int its_parts = parts(sequence);
    if (its_parts == 0 || first >= task.rows) return;
    GroupScratch s = scratch.of(worker);
    QueryBlock& q = s.blocks[0];
    a.describe_query_block(sequence, head_k, task.row0 + first,
                           static_cast<int>(std::min<std::int64_t>(task.rows - first, a.ops.rows)),
                           q);
    merge_partials(a, numbered.partials, numbered.at(index / blocks, 0, block), blocks, its_parts,
                   q);
    a.store_block(sequence, q, outputs);
  });
}

}  // namespace attn::cpu
