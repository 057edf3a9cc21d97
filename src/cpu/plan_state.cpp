#include "cpu/plan_state.hpp"

#include <utility>

namespace attn::cpu {

PlanState::Choices::Choices(const Plan& plan)
    : problem(core::numbers_of(plan.problem)),
      algorithm(plan.algorithm),
      isa(plan.isa),
      compute(plan.compute),
      rows_per_task(plan.rows_per_task),
      num_splits(plan.num_splits),
      batch_invariant(plan.batch_invariant) {}

PlanState::PlanState(const Plan& plan, std::vector<Plan> shorter)
    : Expressions(plan), shorter_(std::move(shorter)), choices_(plan) {}

std::span<const Plan> PlanState::shorter_of(const Plan& plan) {
  const auto* const state = static_cast<const PlanState*>(core::made_for(plan));
  if (state->shorter_.empty() || Expressions::of(plan) == nullptr ||
      state->choices_ != Choices(plan)) {
    return {};
  }
  return state->shorter_;
}

}  // namespace attn::cpu
