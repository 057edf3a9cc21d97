// What make_plan set in the fields of a plan that a run of its backend does not read: plans are
// open structures, and a change that has no effect is refused and not ignored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/matmul.hpp"
#include "attn/plan.hpp"

namespace attn::core {

class PlanRecord {
 public:
  PlanRecord() = default;
  explicit PlanRecord(const Plan& plan);
  explicit PlanRecord(const MatmulPlan& plan);

  // Throws Error(invalid_argument) that names the field, its value and what make_plan set.
  // Allocates nothing where all is as it was. The backend is that of the plan that the record was
  // made of.
  void check(const Plan& plan) const;
  void check(const MatmulPlan& plan) const;

 private:
  std::vector<std::int64_t> numbers_;
  std::vector<std::string> texts_;
};

// MatmulPlan::state.
struct MatmulMadeFor {
  explicit MatmulMadeFor(const MatmulPlan& plan)
      : problem(plan.problem),
        backend(plan.backend),
        rung(plan.rung),
        isa(plan.isa),
        compute(plan.compute),
        block_n(plan.block_n),
        record(plan) {}

  MatmulProblem problem;
  Backend backend;
  std::string rung;
  InstructionSet isa;
  DType compute;
  std::int32_t block_n;
  PlanRecord record;
};

// Null where the plan has none: it was moved from, or nobody made it.
inline const MatmulMadeFor* made_for(const MatmulPlan& plan) noexcept {
  return static_cast<const MatmulMadeFor*>(plan.state.get());
}

}  // namespace attn::core
