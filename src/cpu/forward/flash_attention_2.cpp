// FlashAttention-2, algorithm 1 (Dao 2023): outer loop over Q blocks, in parallel; inner loop over
// K, V blocks; O is normalised once at the end.
#include "cpu/budgets.hpp"
#include "cpu/forward/forward.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/pairs.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

// K, V blocks of a packing task.
constexpr std::int64_t kPackBlocks = 8;

// Packs K and V of every pair of the wave that has room.
void pack_keys(const Attention& a, const Waves& waves, const Wave& wave, std::byte* memory,
               const Workers& workers) {
  const std::int64_t chunk = kPackBlocks * kBlockK;
  const std::int64_t chunks = (a.problem.seqlen_k + chunk - 1) / chunk;
  const std::int64_t pairs = wave.last - wave.first;
  // Neighbouring heads one after the other: their rows lie side by side.
  workers.parallel_for(pairs * chunks, [&](std::int64_t index, int) {
    const std::size_t offset = waves.offset_of(wave.first + index % pairs);
    if (offset == kNotPacked) return;
    const Pair pair = pair_at(a, wave.first + index % pairs);
    const PackedKeys packed(a, pair.sequence, memory + offset);
    const std::int64_t begin = index / pairs * chunk;
    const std::int64_t end = std::min<std::int64_t>(begin + chunk, pair.sequence.length_k);
    for (std::int64_t key = begin; key < end; key += kBlockK) {
      const auto keys = static_cast<int>(std::min<std::int64_t>(kBlockK, end - key));
      KeyBlock block = packed.block(static_cast<int>(key), keys);
      a.load_key_block(pair.sequence, pair.head_k, static_cast<int>(key), keys, block);
    }
  });
}

}  // namespace

void forward_flash_attention_2(const Attention& a, const Plan& plan, const Outputs& outputs,
                               const Workers& workers) {
  // A pair whose rows are one task reads its K and V once and packs them as it goes.
  const auto bytes_of = [&](const Pair& pair) {
    return a.rows(pair.sequence) <= plan.rows_per_task ? kNotPacked
                                                       : PackedKeys::packed_bytes(a, pair.sequence);
  };
  Workspace& workspace = workers.workspace();
  const Waves all = waves(a, static_cast<std::size_t>(kKeyPackBudget),
                          static_cast<std::size_t>(kKeyPackBudget), bytes_of, workspace);
  const WorkerScratch<GroupScratch> scratch(workspace, workers.count(), group_scratch(a));
  std::byte* const memory = workspace.take(largest_wave(all), "packed K and V");
  for (const Wave& wave : all.list) {
    const Workspace::Scope of_wave(workspace);
    if (wave.bytes != 0) pack_keys(a, all, wave, memory, workers);
    const auto packed_at = [&](const RowTask& task) { return all.offset_of(task.pair); };
    // Two tasks a thread in quarters: half a task a thread, some 3 % of its time with 16 tasks, is
    // what they would wait for each other otherwise. Where K and V are packed as a task goes, all
    // of its rows share that.
    const RowTasks tasks = divide_last(
        row_tasks(a, plan.rows_per_task, wave.first, wave.last, workspace),
        plan.threads > 1 ? 2 * static_cast<std::size_t>(plan.threads) : 0,
        std::max<std::int64_t>(plan.rows_per_task / 4, std::int64_t{a.ops.q_blocks} * a.ops.rows),
        [&](const RowTask& task) { return packed_at(task) == kNotPacked; }, workspace);
    workers.parallel_for(
        static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index, int worker) {
          const RowTask& task = tasks[static_cast<std::size_t>(index)];
          const auto [sequence, head_k] = pair_at(a, task.pair);
          const std::size_t offset = packed_at(task);
          const PackedKeys packed(a, sequence, offset == kNotPacked ? nullptr : memory + offset);
          GroupScratch s = scratch.of(worker);
          const TileState tile_state(a.ops);
          const int blocks = load_query_group(a, sequence, head_k, task.row0, task.rows, s.blocks);
          const expr::Tile rows = a.tile(sequence, head_k, task.row0, task.rows);
          attend(a, sequence, {head_k, 1}, rows, blocks, 0, sequence.length_k, packed, s);
          for (int i = 0; i < blocks; ++i) a.store_block(sequence, s.blocks[i], outputs);
        });
  }
}

}  // namespace attn::cpu
