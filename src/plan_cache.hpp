// Plans of calls that are given a problem, so that the next like call finds its own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>

#include "attn/plan.hpp"
#include "core/fork_safe.hpp"

namespace attn {

// What a plan depends on. Not of the problem: seed and offset of its dropout, though whether they
// stand in a tensor, and what its tensors hold.
struct PlanRequest {
  const Problem& problem;  // complete
  Phase phase;
  const PlanOptions& options;
  InstructionSet isa;
  int workers;  // of the executor; 0 where none is used
};

// Holds the plans of the last requests. Thread-safe. Those that find a plan do not wait for each
// other; a plan that two threads miss at once is made by both.
class PlanCache {
 public:
  static constexpr std::size_t kPlans = 64;

  // The plan of an earlier request like this one, else what `make` gives for the problem without
  // the memory of its expressions' buffers (expr::without_data): a plan from here reads tensors
  // that are bound by name alone. What make throws passes through.
  std::shared_ptr<const Plan> find(const PlanRequest& request,
                                   const std::function<Plan(const Problem&)>& make);

 private:
  struct Entry;

  core::ForkSafe<std::shared_mutex> mutex_;
  std::array<std::uint64_t, kPlans> hashes_{};
  std::array<std::shared_ptr<const Entry>, kPlans> entries_{};
  std::array<std::atomic<std::uint64_t>, kPlans> last_use_{};  // 0: free
  std::atomic<std::uint64_t> uses_{0};
};

// The cache of the process. It is never destroyed: kernels of a GPU in it would outlive the driver.
PlanCache& plan_cache();

}  // namespace attn
