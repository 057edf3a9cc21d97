// Fields of a plan that somebody changed by hand: plans are open structures.
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/matmul.hpp"
#include "attn/plan.hpp"

namespace attn::core {

// Throws Error(invalid_argument) that names the field, its value and what is accepted.
[[noreturn]] void refuse_plan_field(const Plan& plan, std::string_view field,
                                    std::string_view value, std::string_view accepted);

[[noreturn]] void refuse_plan_field(const MatmulPlan& plan, std::string_view field,
                                    std::string_view value, std::string_view accepted);

// Refuses a value outside of min to max.
void check_plan_range(const Plan& plan, std::string_view field, std::int64_t value,
                      std::int64_t min, std::int64_t max);

// Refuses a workspace_bytes that is less than the plan's problem and splits need.
void check_plan_workspace(const Plan& plan, std::int64_t needed);

}  // namespace attn::core
