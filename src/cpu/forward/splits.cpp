#include "cpu/forward/splits.hpp"

#include <algorithm>
#include <cmath>

#include "core/ceil_div.hpp"
#include "core/tensor/size.hpp"
#include "cpu/forward/few_rows.hpp"
#include "cpu/forward/query_group.hpp"

namespace attn::cpu {

using core::ceil_div;

namespace {

// Few rows keep small partial results, and heads that share a task make tasks fewer.
constexpr std::int64_t kMinFewRowsSplitKeys = 256;

}  // namespace

std::int64_t wanted_splits(const Problem& p, std::int32_t block_q, std::int64_t batch) {
  const std::int64_t rows = p.seqlen_q * (p.heads_q / p.heads_k);
  // Heads that lie side by side in memory share a task, all of them where rows are few, some where
  // they are a Q block: only sequences, groups of heads and splits are sure to run in parallel.
  const core::Size tasks_of_sequence = has_few_rows(p) ? core::Size(1)
                                       : rows <= block_q
                                           ? core::Size(ceil_div(p.heads_k, kMaxBlocksPerTask))
                                           : core::Size(p.heads_k) * ceil_div(rows, block_q);
  const std::int64_t tasks = (core::Size(batch) * tasks_of_sequence).value();
  return ceil_div(kEnoughTasks, std::clamp<std::int64_t>(tasks, 1, kEnoughTasks));
}

std::int64_t useful_splits(const Problem& p, std::int64_t length) {
  return std::max<std::int64_t>(1,
                                length / (has_few_rows(p) ? kMinFewRowsSplitKeys : kMinSplitKeys));
}

std::int64_t list_splits(const Problem& p, std::int32_t block_q, std::int64_t batch) {
  if (p.dtype == DType::f64) return 1;
  const std::int64_t blocks = ceil_div(p.heads_q / p.heads_k, block_q);
  const std::int64_t tasks =
      (core::Size(batch) * p.heads_k * p.seqlen_q * ceil_div(blocks, kMaxBlocksPerTask)).value();
  return std::clamp<std::int64_t>(
      ceil_div(kEnoughTasks, std::clamp<std::int64_t>(tasks, 1, kEnoughTasks)), 1,
      std::max<std::int64_t>(1, p.key_list / kMinSplitKeys));
}

std::int64_t invariant_splits(const Problem& p, Algorithm algorithm, std::int32_t block_q,
                              std::int64_t length) {
  if (p.key_list > 0) return list_splits(p, block_q, 1);
  switch (algorithm) {
    case Algorithm::flash_decoding:
      // Few rows have parts as long as others: a large batch needs none, and parts of half the
      // length cost it twice as much (docs/log/cpu.md, "Batch invariance, Zen 3").
      return std::clamp<std::int64_t>(length / kMinSplitKeys, 1,
                                      std::max<std::int64_t>(2, wanted_splits(p, block_q, 1)));
    case Algorithm::memory_efficient: {
      // sqrt(n) chunks, as in the paper, of whole K blocks.
      const auto root =
          static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
      return std::max<std::int64_t>(1, std::min(root, ceil_div(length, kBlockK)));
    }
    case Algorithm::automatic:
    case Algorithm::standard:
    case Algorithm::flash_attention:
    case Algorithm::flash_attention_2:
    case Algorithm::block_sparse:
      break;
  }
  return 1;
}

// A caller may have set more parts than are worth a task each: every sequence has these.
Splits::Splits(const Plan& plan)
    : plan_(plan),
      by_length_(plan.algorithm == Algorithm::flash_decoding &&
                 plan.num_splits <= useful_splits(plan.problem, plan.problem.seqlen_k)) {}

std::int64_t Splits::most_of(const Attention& a) const {
  std::int64_t parts = 1;
  for (const core::Sequence& sequence : a.sequences) parts = std::max(parts, of(sequence));
  return parts;
}

std::int64_t Splits::of(const core::Sequence& sequence) const {
  if (plan_.batch_invariant) {
    return invariant_splits(plan_.problem, plan_.algorithm, plan_.block_q, sequence.length_k);
  }
  // Example: of a cache of 8192 keys in 32 parts, a sequence of 1000 keys has 3.
  return by_length_ ? std::min(most(), useful_splits(plan_.problem, sequence.length_k)) : most();
}

}  // namespace attn::cpu
