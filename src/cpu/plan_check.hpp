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

// Whether bf16 operands take the scale, by which they multiply a sum of products: products below
// 2^-126 count as 0, and a sum past FLT_MAX is infinite. Within these bounds this takes less than
// 2^-80 from a score, but for scores of 2^95 and more.
inline bool scales_bf16(double softmax_scale) {
  return softmax_scale >= 0x1p-32 && softmax_scale <= 0x1p32;
}

// Whether this machine has it.
bool is_available(InstructionSet isa);

}  // namespace attn::cpu
