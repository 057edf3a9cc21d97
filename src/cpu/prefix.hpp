// Forward passes with a shared prefix (Problem::seqlen_prefix): a pass for each part of the keys
// (core/problem/prefix_parts.hpp), which leaves O in float32 and LSE in double (f64: both in
// double), and a merge.
#pragma once

#include "attn/plan.hpp"
#include "attn/run.hpp"

namespace attn::cpu {

// What cpu::plan and cpu::forward (cpu.hpp) do for such a problem.
Plan plan_prefix(const Problem& problem, const PlanOptions& options, const Context& context);
void forward_prefix(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                    const Context& context);

}  // namespace attn::cpu
