// What a plan keeps between its runs (Plan::state).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "attn/plan.hpp"
#include "core/made_for.hpp"
#include "core/problem/numbers.hpp"
#include "cuda/kept_runs.hpp"

namespace attn::cuda {

// All that runs of a plan need beside the tensors of a call: a Run for each kind of tensors that
// came (aligned or not, with lengths or without), made when the first comes and kept as long as the
// plan, or a copy of it, lives (KeptRuns).
//
// Plans are open structures: a copy whose problem, kernel or workspace was changed shares this, and
// is not served from it. Seed and offset of dropout may differ, and the workspace may be larger.
template <class Run>
class PlanState : public core::MadeFor {
 public:
  // phase, device, deterministic, batch_invariant and workspace_bytes of the plan are set. Run is
  // of the phase.
  explicit PlanState(const Plan& plan)
      : core::MadeFor{Backend::cuda, plan.phase},
        numbers_(core::numbers_of(plan.problem)),
        mask_(plan.problem.mask),
        score_(plan.problem.score),
        workspace_bytes_(plan.workspace_bytes),
        device_(plan.device.index),
        num_splits_(plan.num_splits),
        algorithm_(plan.algorithm),
        deterministic_(plan.deterministic),
        batch_invariant_(plan.batch_invariant),
        kernel_(plan.kernel) {}
  PlanState(const PlanState&) = delete;
  PlanState& operator=(const PlanState&) = delete;

  bool is_of(const Plan& plan) const noexcept {
    return plan.device.index == device_ && plan.num_splits == num_splits_ &&
           plan.workspace_bytes >= workspace_bytes_ && plan.algorithm == algorithm_ &&
           plan.deterministic == deterministic_ && plan.batch_invariant == batch_invariant_ &&
           plan.problem.mask.get() == mask_.get() && plan.problem.score.get() == score_.get() &&
           plan.kernel == kernel_ && core::numbers_of(plan.problem) == numbers_;
  }

  // Finds and adds runs as KeptRuns does.
  template <class Suits>
  const Run* find(const Suits& suits) const {
    return runs_.find(suits);
  }
  const Run& add(Run run) { return runs_.add(std::move(run)); }

 private:
  const core::ProblemNumbers numbers_;
  const expr::Expr mask_, score_;
  const std::int64_t workspace_bytes_;
  const std::int32_t device_, num_splits_;
  const Algorithm algorithm_;
  const bool deterministic_, batch_invariant_;
  const std::string kernel_;
  KeptRuns<Run> runs_;
};

// The run of the plan that suits, made where there is none; kept in `own` where the plan's state is
// not of it.
template <class Run, class Suits, class Make>
const Run& run_of(const Plan& plan, std::optional<Run>& own, const Suits& suits, const Make& make) {
  auto* const state = static_cast<PlanState<Run>*>(static_cast<core::MadeFor*>(plan.state.get()));
  if (!state->is_of(plan)) return own.emplace(make());
  const Run* const found = state->find(suits);
  return found != nullptr ? *found : state->add(make());
}

}  // namespace attn::cuda
