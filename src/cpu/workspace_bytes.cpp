#include "cpu/workspace_bytes.hpp"

#include <algorithm>

#include "cpu/backward/backward.hpp"
#include "cpu/backward/flash_memory.hpp"
#include "cpu/backward/gradient_context.hpp"
#include "cpu/budgets.hpp"
#include "cpu/f64/f64.hpp"
#include "cpu/forward/few_rows.hpp"
#include "cpu/forward/partial.hpp"
#include "cpu/pairs.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {
namespace {

using core::Size;

// Each piece ends on a cache line; no step takes more pieces than this.
constexpr std::int64_t kRounding = 64 * std::int64_t{kAlignment};
constexpr Size kFloat = sizeof(float);

template <class Scratch>
Size scratch_bytes(const Scratch& scratch) {
  return WorkerScratch<Scratch>::bytes(scratch);
}

class Count {
 public:
  Count(const Plan& plan, const Expressions& expressions)
      : plan_(plan),
        p_(plan.problem),
        expressions_(expressions),
        d_(leading_dim(static_cast<int>(p_.head_dim))),
        d_v_(leading_dim(static_cast<int>(p_.head_dim_v))),
        pairs_(Size(p_.batch) * p_.heads_k),
        group_(p_.heads_q / p_.heads_k),
        rows_(Size(p_.seqlen_q) * group_),
        blocks_(core::divide_up(rows_, plan.block_q)),
        tasks_(pairs_ * std::max(Size(1), core::divide_up(rows_, plan.rows_per_task))) {
    tile_.operand = plan.compute;
    tile_.expression_floats = expressions.scratch_floats();
  }

  // Bytes of a call: its sequences and bound expressions.
  Size call() const {
    return Size(p_.batch) * Size(sizeof(core::Sequence)) + Size(expressions_.view_bytes()) +
           kRounding;
  }

  Size forward() const {
    const Size scratch = plan_.threads * (scratch_bytes(group()) + kRounding);
    const Size partial = Partials::bytes_each(static_cast<int>(p_.head_dim_v), plan_.block_q);
    const Size blocks_of_task = core::divide_up(Size(plan_.rows_per_task), plan_.block_q);
    if (p_.key_list > 0) {
      const Size tasks =
          pairs_ * p_.seqlen_q * core::divide_up(group_, std::int64_t{plan_.rows_per_task});
      const Size partials = plan_.num_splits > 1 ? tasks * plan_.num_splits : Size(0);
      return scratch + tasks * Size(sizeof(RowTask)) + partials * blocks_of_task * partial +
             kRounding;
    }
    switch (plan_.algorithm) {
      case Algorithm::standard:
        return plan_.threads * (one_block() + kFloat * kMaxRows * p_.head_dim_v) + matrix();
      case Algorithm::flash_attention:
      case Algorithm::block_sparse: {
        const Size o = kFloat * kMaxRows * p_.head_dim_v;
        return plan_.threads * (one_block() + o + blocks_ * (Size(sizeof(QueryBlock)) + o));
      }
      case Algorithm::memory_efficient:
        return scratch + task_lists() +
               plan_.threads * kMaxBlocksPerTask * plan_.num_splits * partial;
      case Algorithm::flash_decoding:
        return scratch + few_rows() + Size(p_.batch) * 8 + kRounding + task_lists() +
               (has_few_rows(p_) || plan_.num_splits > 1 ? tasks_ : Size(0)) * plan_.num_splits *
                   blocks_of_task *
                   Partials::bytes_each(static_cast<int>(p_.head_dim_v),
                                        partial_rows(p_, plan_.block_q));
      case Algorithm::flash_attention_2:
      case Algorithm::automatic:  // no plan has it
        break;
    }
    const Size keys = core::round_up(Size(p_.seqlen_k), kBlockK);
    return scratch + task_lists() + wave_lists() +
           std::min(Size(kKeyPackBudget), pairs_ * keys * kFloat * (d_ + d_v_));
  }

  Size backward() const {
    const Size blocks =
        p_.key_list > 0 ? p_.seqlen_q * core::divide_up(group_, plan_.block_q) : blocks_;
    const Size statistics = (pairs_ + 1) * 8 + 2 * pairs_ * blocks * plan_.block_q * kFloat;
    const Size keys = kFloat * kBlockK * (d_ + d_v_);
    const Size block = gradient_block();
    const Size common =
        gradient_tiles() + block + 2 * keys + kFloat * kMaxRows * p_.head_dim + kRounding;
    const Size chunk = kFloat * kChunkKeys * (d_ + d_v_);
    Size bytes = statistics + plan_.threads * common;
    if (expressions_.gradient_buffers() > 0) {
      const Size of_tile = (kMaxRank * kFloat + 8) * kBlockK * kMaxRows;
      bytes = bytes + plan_.threads * (common + chunk + of_tile) +
              8 * expressions_.gradient_elements() +
              Size(expressions_.gradient_buffers()) * (kBufferGradientBytes + kAlignment) +
              Size(expressions_.view_bytes()) + kRounding;
    }
    if (p_.key_list > 0) {
      GradientTiles tiles;
      tiles.tile = tile_;
      const Size weights = pairs_ * blocks * plan_.block_q * kFloat;
      return bytes + weights + key_list_gradient_bytes(plan_, tiles) + kRounding;
    }
    if (plan_.algorithm == Algorithm::standard) return bytes + 2 * matrix();
    bytes = bytes +
            plan_.threads * (kGradientGroup * (gradient_tiles() + block) + 2 * chunk + kRounding);
    bytes = bytes + wave_lists();
    const Size packed = p_.seqlen_k > kChunkKeys ? blocks_ * block : Size(0);
    const Size pairs = pairs_at_once(pairs_, plan_.threads, plan_.num_splits, packed);
    return bytes + std::min(Size(kQueryPackBudget), pairs * packed) +
           plan_.num_splits * pairs * blocks_ * plan_.block_q * p_.head_dim * kFloat;
  }

 private:
  GroupScratch group() const {
    GroupScratch g;
    g.dim = static_cast<int>(p_.head_dim);
    g.dim_v = static_cast<int>(p_.head_dim_v);
    for (TileScratch& tile : g.tile) tile = tile_;
    return g;
  }
  Size few_rows() const {
    if (!has_few_rows(p_)) return 0;
    FewRowsScratch s;
    s.dim = static_cast<int>(p_.head_dim);
    s.dim_v = static_cast<int>(p_.head_dim_v);
    s.heads = most_heads_per_group(p_);
    s.tile = tile_;
    return plan_.threads * (scratch_bytes(s) + kRounding);
  }
  // Bytes of a worker that takes one Q block at a time: a tile, the Q block with its Q^T, a K, V
  // block.
  Size one_block() const {
    return scratch_bytes(tile_) + Size(sizeof(QueryBlock)) +
           kFloat * (kBlockK * (d_ + d_v_) + kMaxRows * (p_.head_dim + 1)) + kRounding;
  }
  // Bytes of the scores of one pair.
  Size matrix() const { return blocks_ * plan_.block_q * p_.seqlen_k * kFloat + kRounding; }
  Size gradient_tiles() const {
    GradientTiles t;
    t.tile = tile_;
    return Size(sizeof(GradientTiles)) + scratch_bytes(t);
  }
  Size gradient_block() const {
    Carver c;
    GradientBlock* self = nullptr;
    c.take(self, 1);
    GradientBlock().carve(c, static_cast<int>(p_.head_dim), static_cast<int>(p_.head_dim_v),
                          plan_.compute);
    return c.used();
  }
  // Bytes of the list of tasks, and of the same again with the last two a worker in quarters.
  Size task_lists() const {
    return (2 * tasks_ + 8 * plan_.threads) * Size(sizeof(RowTask)) + kRounding;
  }
  Size wave_lists() const { return pairs_ * Size(sizeof(Wave) + sizeof(std::size_t)) + kRounding; }

  const Plan& plan_;
  const Problem& p_;
  const Expressions& expressions_;
  Size d_, d_v_;  // leading dimensions
  Size pairs_;
  Size group_;  // query heads of a K, V head
  Size rows_, blocks_, tasks_;
  TileScratch tile_;
};

}  // namespace

core::Size workspace_bytes(const Plan& plan, const PlanState& state) {
  if (plan.phase == Phase::forward && plan.problem.seqlen_q == 0) return 0;
  const Count count(plan, state);
  if (plan.compute == DType::f64) {
    return count.call() + (plan.phase == Phase::forward ? f64::forward_bytes(plan, state)
                                                        : f64::backward_bytes(plan, state));
  }
  if (plan.phase == Phase::backward) return count.call() + count.backward();
  if (state.shorter().empty()) return count.call() + count.forward();
  // The sequences of each plan come after those of the batch.
  Size most = count.call() + count.forward();
  for (const Plan& shorter : state.shorter()) most = std::max(most, Size(shorter.workspace_bytes));
  return count.call() + most;
}

}  // namespace attn::cpu
