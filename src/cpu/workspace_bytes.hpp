// Plan::workspace_bytes of the CPU backend.
#pragma once

#include "core/tensor/size.hpp"
#include "cpu/plan_state.hpp"

namespace attn::cpu {

// Upper bound of what a run of the plan takes from its Workspace (tests/cpu/call_memory_test.cpp
// holds runs to it). plan is complete but for workspace_bytes.
core::Size workspace_bytes(const Plan& plan, const PlanState& state);

}  // namespace attn::cpu
