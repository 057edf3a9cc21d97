// Refusals of plans that were changed after make_plan, and of executors without workers.
#pragma once

#include <memory>

#include "attn/context.hpp"
#include "attn/plan.hpp"

namespace attn::cpu {

// The context's executor, or the default one. Throws Error(invalid_argument) for one whose
// concurrency is below 1.
std::shared_ptr<Executor> executor_of(const Context& context);

// Throws Error(invalid_argument) naming the field of the plan that a run of `phase`
// on the cpu backend cannot take. The problem was checked before.
void check_plan(const Plan& plan, Phase phase);

// Whether this machine has it.
bool is_available(InstructionSet isa);

}  // namespace attn::cpu
