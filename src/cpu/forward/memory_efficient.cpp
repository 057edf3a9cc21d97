// Rabe and Staats 2021, "Self-attention does not need O(n^2) memory": for a chunk of queries each
// chunk of keys is summarised (maximum, sum of exponentials, weighted values); the summaries are
// then rescaled to the common maximum and added.
#include <cmath>

#include "cpu/forward/forward.hpp"
#include "cpu/forward/partial.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/forward/splits.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {

void forward_memory_efficient(const Attention& a, const Plan& plan, const Outputs& outputs,
                              const Workers& workers) {
  const RowTasks tasks = row_tasks(a, plan.rows_per_task, workers.workspace());
  const Splits splits(plan);
  const std::int64_t most_chunks = splits.most();
  const WorkerScratch<GroupScratch> scratch(workers.workspace(), workers.count(), group_scratch(a));
  const Partials summaries(workers.workspace(),
                           core::Size(workers.count()) * kMaxBlocksPerTask * most_chunks, a.dim_v,
                           a.ops.rows);
  workers.parallel_for(
      static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index, int worker) {
        const RowTask& task = tasks[static_cast<std::size_t>(index)];
        const auto [sequence, head_k] = pair_at(a, task.pair);
        GroupScratch s = scratch.of(worker);
        const TileState tile_state(a.ops);
        const expr::Tile rows = a.tile(sequence, head_k, task.row0, task.rows);
        const std::int64_t first = std::int64_t{worker} * kMaxBlocksPerTask * most_chunks;
        const PackedKeys unpacked(a, sequence, nullptr);
        const auto chunks = static_cast<int>(splits.of(sequence));
        int blocks = 0;
        for (int chunk = 0; chunk < chunks; ++chunk) {
          const KeyRange keys = splits.range(sequence, chunk);
          blocks = load_query_group(a, sequence, head_k, task.row0, task.rows, s.blocks);
          const GroupPass pass{a, sequence, {head_k, 1}, rows, blocks, keys, unpacked, s};
          attend(pass);
          for (int i = 0; i < blocks; ++i) {
            save_partial(a, s.blocks[i], s.blocks[i].o_t,
                         summaries[first + std::int64_t{chunk} * kMaxBlocksPerTask + i]);
          }
        }
        for (int i = 0; i < blocks; ++i) {
          merge_partials(a, summaries, first + i, kMaxBlocksPerTask, chunks, s.blocks[i]);
          a.store_block(sequence, s.blocks[i], outputs);
        }
      });
}

}  // namespace attn::cpu
