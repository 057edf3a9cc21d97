// What a plan of several ranks knows.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/dist.hpp"
#include "core/cache_type.hpp"
#include "dist/areas.hpp"
#include "dist/head_groups.hpp"
#include "dist/local_problem.hpp"
#include "dist/sides.hpp"

namespace attn::dist {

class PeerMemory;

// This rank's own part of the work.
struct LocalWork {
  LocalProblem part{};
  // None where the rank has no queries.
  std::optional<attn::Plan> forward{}, backward{};
  // Instead of these, where ranks are GPUs that read each other's memory.
  std::vector<HeadGroup> forward_groups{}, backward_groups{};
  std::shared_ptr<PeerMemory> memory{};
};

// Ranks whose sums a GPU adds; of more they go through memory of the host.
inline constexpr int kMostPeers = 16;

// Of Q, K, V or O in types of their own there is no backward pass.
inline bool is_forward_alone(const Problem& p) {
  return core::has_own_types(p) || core::has_own_type_q(p) || core::has_own_type_o(p);
}

// In which partial sums of dK and dV travel and are added.
inline DType sum_dtype(const Problem& p) { return p.dtype == DType::f64 ? DType::f64 : DType::f32; }

struct PlanData {
  Problem problem{};
  Options options{};
  std::optional<Group> group{};  // none: a plan to look at
  int ranks = 1;
  Side q{}, k{};
  Cuts cuts_q{}, cuts_k{};
  Areas areas{};
  std::vector<int> owner_q{}, owner_k{};            // of each chunk
  std::vector<RowList> rows{}, keys{}, gathered{};  // of each rank
  std::vector<double> area{};                       // of each rank
  Rates rates{};
  std::vector<std::string> reasons{};
  std::string identity{};  // what ranks compare before a call
  LocalWork work{};
};

// Rows of K and V that one rank has and another's queries see.
RowList moved_rows(const PlanData& plan, int from, int to);

}  // namespace attn::dist
