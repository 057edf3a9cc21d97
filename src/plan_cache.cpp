#include "plan_cache.hpp"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "core/expr/identity.hpp"
#include "core/first_made.hpp"
#include "core/problem/numbers.hpp"

namespace attn {
namespace {

// Every field of Problem and PlanOptions that a plan depends on, but for expressions and the name
// of the kernel.
struct Numbers {
  core::ProblemNumbers problem{};
  std::array<std::uint64_t, 3> request{};
  bool operator==(const Numbers&) const = default;
};

Numbers numbers_of(const PlanRequest& r) {
  return {
      core::numbers_of(r.problem),
      {static_cast<std::uint64_t>(r.phase) | static_cast<std::uint64_t>(r.options.backend) << 8 |
           static_cast<std::uint64_t>(r.options.algorithm) << 16 |
           static_cast<std::uint64_t>(r.isa) << 24 | std::uint64_t{r.options.deterministic} << 32 |
           std::uint64_t{r.options.batch_invariant} << 33,
       static_cast<std::uint64_t>(r.options.device.type) << 32 |
           static_cast<std::uint32_t>(r.options.device.index),
       static_cast<std::uint64_t>(r.options.threads) << 32 |
           static_cast<std::uint32_t>(r.workers)}};
}

std::uint64_t hash_of(const Numbers& numbers, const PlanRequest& r) {
  std::uint64_t hash = std::hash<std::string>()(r.options.kernel);
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  for (const std::uint64_t number : numbers.problem) mix(number);
  for (const std::uint64_t number : numbers.request) mix(number);
  mix(expr::plan_hash(r.problem.mask));
  mix(expr::plan_hash(r.problem.score));
  return hash;
}

}  // namespace

struct PlanCache::Entry {
  Numbers numbers;
  std::string kernel;
  std::shared_ptr<const Plan> plan;
};

std::shared_ptr<const Plan> PlanCache::find(const PlanRequest& request,
                                            const std::function<Plan(const Problem&)>& make) {
  const Numbers numbers = numbers_of(request);
  const std::uint64_t hash = hash_of(numbers, request);
  {
    const std::shared_lock lock(mutex_);
    for (std::size_t i = 0; i < kPlans; ++i) {
      if (hashes_[i] != hash || entries_[i] == nullptr) continue;
      const Entry& entry = *entries_[i];
      const Problem& planned = entry.plan->problem;
      if (entry.numbers == numbers && entry.kernel == request.options.kernel &&
          expr::plans_alike(planned.mask, request.problem.mask) &&
          expr::plans_alike(planned.score, request.problem.score)) {
        last_use_[i].store(++uses_, std::memory_order_relaxed);
        return entry.plan;
      }
    }
  }
  Problem problem = request.problem;
  problem.mask = expr::without_data(problem.mask);
  problem.score = expr::without_data(problem.score);
  auto entry = std::make_shared<Entry>();
  entry->numbers = numbers;
  entry->kernel = request.options.kernel;
  auto plan = std::make_shared<Plan>(make(problem));
  plan->reasons.clear();  // nobody reads them, and a call with a seed of its own copies the plan
  entry->plan = std::move(plan);
  std::shared_ptr<const Entry> replaced;  // destroyed after the lock
  const std::unique_lock lock(mutex_);
  const auto oldest =
      static_cast<std::size_t>(std::min_element(last_use_.begin(), last_use_.end(),
                                                [](const auto& a, const auto& b) {
                                                  return a.load(std::memory_order_relaxed) <
                                                         b.load(std::memory_order_relaxed);
                                                }) -
                               last_use_.begin());
  replaced = std::exchange(entries_[oldest], entry);
  hashes_[oldest] = hash;
  last_use_[oldest].store(++uses_, std::memory_order_relaxed);
  return entry->plan;
}

PlanCache& plan_cache() {
  static constinit core::FirstMade<PlanCache> cache;
  return cache.get([] { return PlanCache(); });
}

}  // namespace attn
