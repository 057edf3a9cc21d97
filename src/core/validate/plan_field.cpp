#include "core/validate/plan_field.hpp"

#include <fmt/format.h>

#include <string>

#include "attn/error.hpp"
#include "core/text/echo.hpp"

namespace attn::core {

namespace {

[[noreturn]] void refuse(const std::string& problem, std::string_view field, std::string_view value,
                         std::string_view accepted) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} of the plan is {}; accepted is {}, as make_plan sets it (problem {})",
                          field, value, accepted, problem));
}

}  // namespace

void refuse_plan_field(const Plan& plan, std::string_view field, std::string_view value,
                       std::string_view accepted) {
  refuse(echo(plan.problem), field, value, accepted);
}
void refuse_plan_field(const MatmulPlan& plan, std::string_view field, std::string_view value,
                       std::string_view accepted) {
  refuse(to_string(plan.problem), field, value, accepted);
}

void check_plan_range(const Plan& plan, std::string_view field, std::int64_t value,
                      std::int64_t min, std::int64_t max) {
  if (value < min || value > max) {
    refuse_plan_field(plan, field, std::to_string(value), fmt::format("{} to {}", min, max));
  }
}

void check_plan_workspace(const Plan& plan, std::int64_t needed) {
  if (plan.workspace_bytes < needed) {
    refuse_plan_field(plan, "workspace_bytes", std::to_string(plan.workspace_bytes),
                      fmt::format("{} and more for num_splits {}", needed, plan.num_splits));
  }
}

}  // namespace attn::core
