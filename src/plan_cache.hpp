// Plans of calls that are given a problem, so that the next like call finds its own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "attn/matmul.hpp"
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

// The same of a matrix product.
struct MatmulRequest {
  const MatmulProblem& problem;
  const MatmulOptions& options;
  InstructionSet isa;
  int workers;
};

// The entries that were used last, found by hash and then by what they are. Thread-safe.
template <class Entry, std::size_t kCount>
class LastUsed {
 public:
  // An entry with this hash for which alike(entry) is true, or null. Threads do not wait for each
  // other.
  template <class Alike>
  std::shared_ptr<const Entry> find(std::uint64_t hash, const Alike& alike) {
    const std::shared_lock lock(mutex_);
    for (std::size_t i = 0; i < kCount; ++i) {
      if (hashes_[i] != hash || entries_[i] == nullptr || !alike(*entries_[i])) continue;
      last_use_[i].store(++uses_, std::memory_order_relaxed);
      return entries_[i];
    }
    return nullptr;
  }

  // In the place of the entry that was used longest ago.
  void add(std::uint64_t hash, std::shared_ptr<const Entry> entry) {
    std::shared_ptr<const Entry> replaced;  // destroyed after the lock
    const std::unique_lock lock(mutex_);
    std::size_t oldest = 0;
    for (std::size_t i = 1; i < kCount; ++i) {
      if (last_use_[i].load(std::memory_order_relaxed) <
          last_use_[oldest].load(std::memory_order_relaxed)) {
        oldest = i;
      }
    }
    replaced = std::exchange(entries_[oldest], std::move(entry));
    hashes_[oldest] = hash;
    last_use_[oldest].store(++uses_, std::memory_order_relaxed);
  }

 private:
  core::ForkSafe<std::shared_mutex> mutex_;
  std::array<std::uint64_t, kCount> hashes_{};
  std::array<std::shared_ptr<const Entry>, kCount> entries_{};
  std::array<std::atomic<std::uint64_t>, kCount> last_use_{};  // 0: free
  std::atomic<std::uint64_t> uses_{0};
};

// Holds the plans of the last requests. Thread-safe. Those that find a plan do not wait for each
// other; a plan that two threads miss at once is made by both.
class PlanCache {
 public:
  static constexpr std::size_t kPlans = 64;  // of each kind

  // The plan of an earlier request like this one, else what `make` gives for the problem without
  // the memory of its expressions' buffers (expr::without_data): a plan from here reads tensors
  // that are bound by name alone. What make throws passes through.
  std::shared_ptr<const Plan> find(const PlanRequest& request,
                                   const std::function<Plan(const Problem&)>& make);
  std::shared_ptr<const MatmulPlan> find(const MatmulRequest& request,
                                         const std::function<MatmulPlan()>& make);

 private:
  struct Entry;
  struct MatmulEntry;

  LastUsed<Entry, kPlans> plans_;
  LastUsed<MatmulEntry, kPlans> matmul_plans_;
};

// The cache of the process. It is never destroyed: kernels of a GPU in it would outlive the driver.
PlanCache& plan_cache();

}  // namespace attn
