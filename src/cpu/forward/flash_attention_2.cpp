// FlashAttention-2, algorithm 1 (Dao 2023): outer loop over Q blocks, in parallel; inner loop over
// K, V blocks; O is normalised once at the end.
#include "cpu/forward/forward.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {

void forward_flash_attention_2(const Attention& a, const Plan& plan, const Outputs& outputs,
                               Executor& executor) {
  const std::vector<RowTask> tasks = row_tasks(a, plan.rows_per_task);
  const WorkerScratch<GroupScratch> scratch(executor.concurrency(), group_scratch(a));
  executor.parallel_for(
      static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index, int worker) {
        const RowTask& task = tasks[static_cast<std::size_t>(index)];
        const core::Sequence& sequence = a.sequences[static_cast<std::size_t>(task.batch)];
        GroupScratch s = scratch.of(worker);
        const int blocks = load_query_group(a, sequence, task.head_k, task.row0, task.rows, s);
        const expr::Tile rows = a.tile(sequence, task.head_k, task.row0, task.rows);
        attend(a, sequence, task.head_k, rows, blocks, 0, sequence.length_k, s);
        for (int i = 0; i < blocks; ++i) a.store_block(sequence, s.blocks[i], outputs);
      });
}

}  // namespace attn::cpu
