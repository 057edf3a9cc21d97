#include "plan_cache.hpp"

#include <array>
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

void mix(std::uint64_t& hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  hash ^= hash >> 32;
}

std::uint64_t hash_of(const Numbers& numbers, const PlanRequest& r) {
  std::uint64_t hash = std::hash<std::string>()(r.options.kernel);
  for (const std::uint64_t number : numbers.problem) mix(hash, number);
  for (const std::uint64_t number : numbers.request) mix(hash, number);
  mix(hash, expr::plan_hash(r.problem.mask));
  mix(hash, expr::plan_hash(r.problem.score));
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
  const auto found = plans_.find(hash, [&](const Entry& entry) {
    const Problem& planned = entry.plan->problem;
    return entry.numbers == numbers && entry.kernel == request.options.kernel &&
           expr::plans_alike(planned.mask, request.problem.mask) &&
           expr::plans_alike(planned.score, request.problem.score);
  });
  if (found != nullptr) return found->plan;
  Problem problem = request.problem;
  problem.mask = expr::without_data(problem.mask);
  problem.score = expr::without_data(problem.score);
  auto entry = std::make_shared<Entry>();
  entry->numbers = numbers;
  entry->kernel = request.options.kernel;
  auto plan = std::make_shared<Plan>(make(problem));
  plan->reasons.clear();  // nobody reads them, and a call with a seed of its own copies the plan
  entry->plan = plan;
  plans_.add(hash, std::move(entry));
  return plan;
}

// Plan and request of an earlier product.
struct PlanCache::MatmulEntry {
  MatmulProblem problem;
  std::string rung;
  std::array<std::uint64_t, 2> options;
  std::shared_ptr<const MatmulPlan> plan;
};

std::shared_ptr<const MatmulPlan> PlanCache::find(const MatmulRequest& request,
                                                  const std::function<MatmulPlan()>& make) {
  const MatmulProblem& p = request.problem;
  const MatmulOptions& o = request.options;
  const std::array<std::uint64_t, 2> options = {
      static_cast<std::uint64_t>(o.backend) | static_cast<std::uint64_t>(request.isa) << 8 |
          static_cast<std::uint64_t>(o.device.type) << 16 |
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(o.device.index)) << 32,
      static_cast<std::uint64_t>(o.threads) << 32 | static_cast<std::uint32_t>(request.workers)};
  std::uint64_t hash = std::hash<std::string>()(o.rung);
  for (const auto size : {p.batch, p.m, p.n, p.k}) mix(hash, static_cast<std::uint64_t>(size));
  mix(hash, static_cast<std::uint64_t>(p.dtype) | static_cast<std::uint64_t>(p.type_of_b()) << 8 |
                static_cast<std::uint64_t>(p.output) << 16 |
                static_cast<std::uint64_t>(p.activation) << 24 |
                static_cast<std::uint64_t>(p.format_b) << 32);
  for (const std::uint64_t number : options) mix(hash, number);
  const auto found = matmul_plans_.find(hash, [&](const MatmulEntry& entry) {
    // Whether dtype_b is given is no part of its ==.
    return entry.problem == p && entry.problem.type_of_b() == p.type_of_b() &&
           entry.rung == o.rung && entry.options == options;
  });
  if (found != nullptr) return found->plan;
  auto plan = std::make_shared<MatmulPlan>(make());
  plan->reasons.clear();
  matmul_plans_.add(hash, std::make_shared<MatmulEntry>(MatmulEntry{p, o.rung, options, plan}));
  return plan;
}

PlanCache& plan_cache() {
  static constinit core::FirstMade<PlanCache> cache;
  return cache.get([] { return PlanCache(); });
}

}  // namespace attn
