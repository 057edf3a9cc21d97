#include "cpu/plan_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "core/ceil_div.hpp"
#include "core/first_made.hpp"
#include "core/validate/plan_field.hpp"
#include "cpu/f64/f64.hpp"
#include "cpu/forward/few_rows.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/forward/splits.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu {
namespace {

using core::check_plan_range;
using core::refuse_plan_field;

// Looked up once: a run allocates nothing.
bool has_pass(Algorithm algorithm, Phase phase) {
  using Lists = std::array<std::vector<Algorithm>, 2>;
  static constinit core::FirstMade<const Lists> made;
  const Lists& lists = made.get([] {
    return Lists{algorithms(Phase::forward), algorithms(Phase::backward)};
  });
  const std::vector<Algorithm>& list = lists[phase == Phase::backward ? 1 : 0];
  return std::find(list.begin(), list.end(), algorithm) != list.end();
}

// Whether the instruction set multiplies bf16 operands of this problem.
bool takes_bf16(const Plan& plan, Phase phase) {
  const Problem& p = plan.problem;
  if (p.dtype != DType::bf16 || !has_bf16_products(plan.isa, false)) return false;
  const TileOps& ops = tile_ops(plan.isa, DType::bf16);
  const int multiple = ops.dim_multiple;
  const bool decodes = plan.algorithm == Algorithm::flash_decoding && has_few_rows(p);
  if (decodes && !decodes_bf16(p, ops)) return false;
  return (phase == Phase::forward || has_backward(ops)) && plan.algorithm != Algorithm::standard &&
         scales_bf16(p.scale()) && !core::has_own_type_q(p) && p.head_dim % multiple == 0 &&
         p.head_dim_v % multiple == 0;
}

}  // namespace

bool is_available(InstructionSet isa) {
  static constinit core::FirstMade<const std::vector<InstructionSetInfo>> made;
  const auto& known = made.get(instruction_sets);
  return std::any_of(known.begin(), known.end(), [isa](const InstructionSetInfo& info) {
    return info.isa == isa && info.available;
  });
}

std::shared_ptr<Executor> executor_of(const Context& context) {
  std::shared_ptr<Executor> executor =
      context.executor != nullptr ? context.executor : default_executor();
  if (executor->concurrency() < 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("executor of the context has concurrency {}; accepted are 1 and more",
                            executor->concurrency()));
  }
  return executor;
}

void check_plan(const Plan& plan, Phase phase) {
  const bool is_f64 = plan.problem.dtype == DType::f64;
  const bool one_algorithm = is_f64 || plan.problem.key_list > 0;
  if (one_algorithm ? plan.algorithm != Algorithm::flash_attention_2
                    : !has_pass(plan.algorithm, phase)) {
    refuse_plan_field(plan, "algorithm", name(plan.algorithm),
                      fmt::format("one that has a {} pass {}on the cpu backend", name(phase),
                                  is_f64                      ? "in f64 "
                                  : plan.problem.key_list > 0 ? "over lists of keys "
                                                              : ""));
  }
  if (!is_available(plan.isa)) {
    refuse_plan_field(plan, "isa", name(plan.isa), "an instruction set that this machine has");
  }
  if (is_f64 ? plan.compute != DType::f64
             : plan.compute != DType::f32 &&
                   !(plan.compute == DType::bf16 && takes_bf16(plan, phase))) {
    refuse_plan_field(plan, "compute", name(plan.compute),
                      is_f64 ? "f64, as the dtype of the problem"
                             : "f32, or bf16 where the instruction set and the problem take it");
  }
  const int rows = is_f64 ? f64::kBlockQ : tile_ops(plan.isa, DType::f32).rows;
  const int blocks_per_task = is_f64 ? f64::kMaxBlocksPerTask : kMaxBlocksPerTask;
  check_plan_range(plan, "block_q", plan.block_q, rows, rows);
  check_plan_range(plan, "block_k", plan.block_k, kBlockK, kBlockK);
  check_plan_range(plan, "rows_per_task", plan.rows_per_task, 1,
                   std::int64_t{blocks_per_task} * rows);
  const std::int64_t keys =
      plan.problem.key_list > 0 ? plan.problem.key_list : plan.problem.seqlen_k;
  // Ranges of keys, but of queries in the backward pass of lists.
  const bool of_queries = plan.problem.key_list > 0 && phase == Phase::backward;
  const std::int64_t ranges =
      of_queries ? plan.problem.seqlen_q : core::ceil_div(keys, std::int64_t{kBlockK});
  check_plan_range(plan, "num_splits", plan.num_splits, 1, std::max<std::int64_t>(1, ranges));
  if (plan.batch_invariant) {
    const std::int64_t splits =
        invariant_splits(plan.problem, plan.algorithm, plan.block_q, plan.problem.seqlen_k);
    if (plan.num_splits != splits) {
      refuse_plan_field(plan, "num_splits", std::to_string(plan.num_splits),
                        fmt::format("{} where batch_invariant is true", splits));
    }
  }
  check_plan_range(plan, "threads", plan.threads, 1, std::int64_t{1} << 20);
}

}  // namespace attn::cpu
