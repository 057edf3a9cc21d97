#include "core/plan_record.hpp"

#include <fmt/format.h>

#include <bit>
#include <string_view>
#include <type_traits>

#include "attn/error.hpp"
#include "core/text/echo.hpp"

namespace attn::core {
namespace {

std::int64_t number_of(double value) { return std::bit_cast<std::int64_t>(value); }
template <class T>
std::int64_t number_of(T value) {
  return static_cast<std::int64_t>(value);
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(name(value));
  } else {
    return fmt::format("{}", value);
  }
}

template <class Visit>
void visit_launch(const Launch& launch, const Visit& visit) {
  visit("launch.kernel", launch.kernel);
  visit("launch.arch", launch.arch);
  visit("launch.grid[0]", launch.grid[0]);
  visit("launch.grid[1]", launch.grid[1]);
  visit("launch.grid[2]", launch.grid[2]);
  visit("launch.cluster", launch.cluster);
  visit("launch.shared_bytes", launch.shared_bytes);
}

// Calls visit(name, value) for each field that a run does not read. The cpu backend checks those
// that it reads (cpu/plan_check.hpp), the cuda backend its own.
template <class Visit>
void visit_unread(const Plan& p, const Visit& visit) {
  const bool cpu = p.backend == Backend::cpu, cuda = p.backend == Backend::cuda;
  if (!cpu) {
    visit("isa", p.isa);
    visit("compute", p.compute);
    visit("block_q", p.block_q);
    visit("block_k", p.block_k);
    visit("rows_per_task", p.rows_per_task);
    visit("threads", p.threads);
  }
  if (!cuda) {
    visit("workspace_bytes", p.workspace_bytes);
    visit("kernel", p.kernel);
  }
  if (!cpu && !cuda) {
    visit("algorithm", p.algorithm);
    visit("num_splits", p.num_splits);
  }
  if (p.phase == Phase::backward) visit("batch_invariant", p.batch_invariant);
  visit("tasks", p.tasks);
  visit_launch(p.launch, visit);
  visit("launch.threads", p.launch.threads);
  visit("launch.stages", p.launch.stages);
  visit("bytes", p.bytes);
}

template <class Visit>
void visit_unread(const MatmulPlan& p, const Visit& visit) {
  const bool cpu = p.backend == Backend::cpu, cuda = p.backend == Backend::cuda;
  if (!cpu) {
    visit("isa", p.isa);
    visit("compute", p.compute);
    visit("threads", p.threads);
  }
  if (!cuda) {
    visit("block_m", p.block_m);
    visit("block_k", p.block_k);
    visit("splits", p.splits);
    visit("workspace_bytes", p.workspace_bytes);
    visit("launch.threads", p.launch.threads);
    visit("launch.stages", p.launch.stages);
  }
  if (!cpu && !cuda) {
    visit("block_n", p.block_n);
    visit("rung", p.rung);
  }
  visit("tasks", p.tasks);
  visit_launch(p.launch, visit);
  visit("bytes", p.bytes);
}

template <class AnyPlan>
void record(const AnyPlan& plan, std::vector<std::int64_t>& numbers,
            std::vector<std::string>& texts) {
  visit_unread(plan, [&](std::string_view, const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
      texts.push_back(value);
    } else {
      numbers.push_back(number_of(value));
    }
  });
}

template <class AnyPlan>
void compare(const AnyPlan& plan, const std::vector<std::int64_t>& numbers,
             const std::vector<std::string>& texts) {
  std::size_t number = 0, text = 0;
  visit_unread(plan, [&](std::string_view field, const auto& value) {
    const auto refuse_unless = [&](bool as_it_was) {
      if (as_it_was) return;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} of the plan is {}, which is not what make_plan set; accepted is "
                              "that, as a run does not read it (problem {})",
                              field, echo(text_of(value)), echo(to_string(plan.problem), 300)));
    };
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
      refuse_unless(value == texts[text++]);
    } else {
      refuse_unless(number_of(value) == numbers[number++]);
    }
  });
}

}  // namespace

PlanRecord::PlanRecord(const Plan& plan) { record(plan, numbers_, texts_); }
PlanRecord::PlanRecord(const MatmulPlan& plan) { record(plan, numbers_, texts_); }
void PlanRecord::check(const Plan& plan) const { compare(plan, numbers_, texts_); }
void PlanRecord::check(const MatmulPlan& plan) const { compare(plan, numbers_, texts_); }

}  // namespace attn::core
