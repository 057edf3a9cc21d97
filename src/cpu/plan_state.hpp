// What plans of the CPU backend keep in Plan::state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/plan.hpp"
#include "core/problem/numbers.hpp"
#include "cpu/expressions.hpp"

namespace attn::cpu {

// Immutable, so that threads may share it.
class PlanState : public Expressions {
 public:
  // shorter: plans for sequences with fewer queries, by rising seqlen_q.
  PlanState(const Plan& plan, std::vector<Plan> shorter);

  // The plans for shorter sequences of a plan's batch: one that has at most seqlen_q queries of the
  // first takes that, else of the second and so on, else the plan itself. None where a field that
  // decides about results was changed since they were made: all sequences do as that says then.
  static std::span<const Plan> shorter_of(const Plan& plan);
  std::span<const Plan> shorter() const { return shorter_; }

 private:
  struct Choices {
    explicit Choices(const Plan& plan);
    bool operator==(const Choices&) const = default;

    core::ProblemNumbers problem;
    Algorithm algorithm;
    InstructionSet isa;
    DType compute;
    std::int32_t rows_per_task, num_splits;
    bool batch_invariant;
  };

  std::vector<Plan> shorter_;
  Choices choices_;
};

}  // namespace attn::cpu
