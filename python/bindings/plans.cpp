#include "plans.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "attn/error.hpp"
#include "core/first_made.hpp"
#include "core/fork_safe.hpp"

namespace attn::python {
namespace {

// What a plan depends on, as numbers. The problem is known by its place in memory, which the entry
// keeps from being another's.
using Key = std::array<std::int64_t, 30>;

struct Hash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t hash = 0;
    for (const std::int64_t number : key) {
      hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

struct Entry {
  std::shared_ptr<const Problem> problem;
  std::shared_ptr<const Plan> plan;
};

std::atomic<std::int64_t> made{0};

// What calls share, for all threads.
template <class Map>
struct Known {
  core::ForkSafe<std::mutex> mutex;
  Map map;
};

Key key_of(const Described& described, std::int64_t seqlen_q, std::int64_t seqlen_k,
           const Inputs& inputs, Phase phase, const PlanOptions& options, const Context& context) {
  const auto& q = inputs.q.shape;
  const auto& k = inputs.k.shape;
  const auto& v = inputs.v.shape;
  // How many rows packed tensors have is no part of a problem: batches of other totals share a
  // plan.
  const auto first = [](const Tensor& t, const Tensor& cu_seqlens) {
    return cu_seqlens.given() ? 0 : t.shape[0];
  };
  const auto rank = [](const Tensor& t) { return static_cast<std::int64_t>(t.rank); };
  const std::int64_t ranks = rank(inputs.q) | rank(inputs.k) << 4 | rank(inputs.v) << 8 |
                             rank(inputs.cu_seqlens_q) << 12 | rank(inputs.cu_seqlens_k) << 16 |
                             rank(inputs.page_table) << 20 | rank(inputs.key_list) << 24 |
                             rank(inputs.prefix_k) << 28 | rank(inputs.prefix_page_table) << 32;
  const std::int64_t choices = static_cast<std::int64_t>(phase) |
                               static_cast<std::int64_t>(options.backend) << 8 |
                               static_cast<std::int64_t>(options.algorithm) << 16 |
                               static_cast<std::int64_t>(options.deterministic) << 24 |
                               static_cast<std::int64_t>(options.batch_invariant) << 25 |
                               static_cast<std::int64_t>(inputs.q.dtype) << 32 |
                               static_cast<std::int64_t>(options.device.type) << 40;
  return {reinterpret_cast<std::intptr_t>(described.problem.get()),
          ranks,
          choices,
          options.device.index,
          options.threads,
          context.executor == nullptr ? 0 : context.executor->concurrency(),
          seqlen_q,
          seqlen_k,
          first(inputs.q, inputs.cu_seqlens_q),
          q[1],
          q[2],
          q[3],
          first(inputs.k, inputs.cu_seqlens_k),
          k[1],
          k[2],
          k[3],
          first(inputs.v, inputs.cu_seqlens_k),
          v[1],
          v[2],
          v[3],
          inputs.cu_seqlens_q.shape[0],
          inputs.cu_seqlens_k.shape[0],
          inputs.page_table.shape[0],
          inputs.page_table.shape[1],
          inputs.key_list.shape[0],
          inputs.key_list.shape[1],
          inputs.key_list.shape[2],
          inputs.key_list.shape[3],
          inputs.prefix_k.shape[0],
          inputs.prefix_page_table.shape[0]};
}

}  // namespace

std::shared_ptr<const Problem> parsed(const std::string& text) {
  // A program uses few, each many times.
  constexpr std::size_t kMaxTexts = 4096;
  using Texts = Known<std::unordered_map<std::string, std::shared_ptr<const Problem>>>;
  static constinit core::FirstMade<Texts> shared;
  Texts& known = shared.get([] { return Texts(); });
  {
    const std::lock_guard lock(known.mutex);
    if (const auto at = known.map.find(text); at != known.map.end()) return at->second;
  }
  auto problem = std::make_shared<const Problem>(text.empty() ? Problem{} : parse_problem(text));
  decltype(known.map) old;  // destroyed without the lock
  const std::lock_guard lock(known.mutex);
  if (known.map.size() >= kMaxTexts) old.swap(known.map);
  return known.map.emplace(text, std::move(problem)).first->second;
}

Problem complete(const Described& described, const Inputs& inputs) {
  Problem problem = *described.problem;
  problem.dropout.seed = described.seed;
  problem.dropout.offset = described.offset;
  problem.seqlen_q = described.seqlen_q;
  problem.seqlen_k = described.seqlen_k;
  if (inputs.cu_seqlens_q.given()) problem.layout_q = Layout::packed;
  if (inputs.cu_seqlens_k.given()) problem.layout_k = Layout::packed;
  if (inputs.page_table.given()) {
    if (problem.layout_k == Layout::packed) {
      throw Error(ErrorCode::invalid_argument,
                  "cu_seqlens_k and page_table are both given; accepted is one of them");
    }
    problem.layout_k = Layout::paged;
  }
  return attn::complete(problem, inputs);
}

std::shared_ptr<const Plan> plan_of(const Described& described, const Inputs& inputs, Phase phase,
                                    const PlanOptions& options, const Context& context) {
  constexpr std::size_t kMaxPlans = 256;
  // Never destroyed: kernels of a GPU in it would outlive the driver.
  using Plans = Known<std::unordered_map<Key, Entry, Hash>>;
  static constinit core::FirstMade<Plans> shared;
  Plans& known = shared.get([] { return Plans(); });
  std::int64_t seqlen_q = described.seqlen_q, seqlen_k = described.seqlen_k;
  if ((inputs.cu_seqlens_q.given() && seqlen_q == 0) ||
      (inputs.cu_seqlens_k.given() && seqlen_k == 0)) {
    const Problem problem = complete(described, inputs);  // reads the lengths
    seqlen_q = problem.seqlen_q;
    seqlen_k = problem.seqlen_k;
  }
  const Key key = key_of(described, seqlen_q, seqlen_k, inputs, phase, options, context);
  std::shared_ptr<const Plan> plan;
  {
    const std::lock_guard lock(known.mutex);
    if (const auto at = known.map.find(key); at != known.map.end()) plan = at->second.plan;
  }
  if (plan == nullptr) {
    plan = std::make_shared<const Plan>(
        make_plan(complete(described, inputs), phase, options, context));
    ++made;
    decltype(known.map) old;  // destroyed without the lock
    const std::lock_guard lock(known.mutex);
    if (known.map.size() >= kMaxPlans) old.swap(known.map);
    known.map.emplace(key, Entry{described.problem, plan});
  }
  std::optional<Plan> other;
  with_dropout(*plan, described, other);
  return other ? std::make_shared<const Plan>(std::move(*other)) : plan;
}

const Plan& with_dropout(const Plan& plan, const Described& described, std::optional<Plan>& other) {
  const Dropout& dropout = plan.problem.dropout;
  if (dropout.seed == described.seed && dropout.offset == described.offset) return plan;
  other = plan;
  other->problem.dropout.seed = described.seed;
  other->problem.dropout.offset = described.offset;
  return *other;
}

std::int64_t plans_made() { return made; }

}  // namespace attn::python
