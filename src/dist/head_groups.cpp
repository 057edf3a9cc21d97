#include "dist/head_groups.hpp"

#include <algorithm>
#include <set>

#include "core/ceil_div.hpp"
#include "core/problem/costs.hpp"
#include "dist/plan_data.hpp"

namespace attn::dist {
namespace {

// Tiles of 128 queries that keep a GPU of today busy: about one for each multiprocessor.
constexpr std::int64_t kTilesOfFirst = 128, kTileRows = 128;

bool reads_head(const expr::Expr& e, std::set<const expr::Node*>& seen) {
  if (e.empty() || !seen.insert(&e.node()).second) return false;
  if (e.node().op == expr::Op::head) return true;
  return std::ranges::any_of(e.node().args, [&](const auto& arg) { return reads_head(arg, seen); });
}

bool is_one_call(const Problem& p) {
  std::set<const expr::Node*> seen;
  return p.dropout.probability > 0 || reads_head(p.mask, seen) || reads_head(p.score, seen);
}

// Seconds of a K, V head, of the rank with most.
struct HeadTimes {
  double work = 0, copy = 0;
};

HeadTimes times_of(const PlanData& plan) {
  const Problem& p = plan.problem;
  double area = 0;
  std::int64_t rows = 0;
  for (int r = 0; r < plan.ranks; ++r) {
    std::int64_t moved = 0;
    for (int other = 0; other < plan.ranks; ++other) {
      if (other != r) moved += count(moved_rows(plan, other, r));
    }
    rows = std::max(rows, moved);
    area = std::max(area, plan.area[static_cast<std::size_t>(r)]);
  }
  const auto heads = static_cast<double>(p.heads_k);
  const double sequences = plan.k.packed ? 1 : static_cast<double>(p.batch);
  const auto row_bytes =
      static_cast<double>(p.head_dim + p.head_dim_v) * static_cast<double>(size_of(p.dtype));
  return {area * core::flops_per_element(p, Phase::forward) / (heads * plan.rates.flops),
          sequences * static_cast<double>(rows) * row_bytes / plan.rates.bytes};
}

}  // namespace

std::vector<HeadGroup> head_groups(const PlanData& plan, Phase phase) {
  const Problem& p = plan.problem;
  const HeadTimes t = times_of(plan);
  const std::vector<HeadGroup> one{{0, p.heads_k, false}};
  if (phase == Phase::backward || is_one_call(p) || p.heads_k < 2 || t.copy == 0) return one;
  std::int64_t rows = 0;
  for (const RowList& of_rank : plan.rows) rows = std::max(rows, count(of_rank));
  const std::int64_t lines = plan.q.packed ? 1 : p.batch;
  const std::int64_t tiles =
      std::max<std::int64_t>(1, p.heads_q / p.heads_k * lines * core::ceil_div(rows, kTileRows));
  const std::int64_t first =
      std::clamp<std::int64_t>(core::ceil_div(kTilesOfFirst, tiles), 1, p.heads_k);
  std::vector<HeadGroup> groups{{0, first, true}};
  std::int64_t done = first;
  double arrives = static_cast<double>(first) * t.copy;  // its copy
  double ends = arrives + static_cast<double>(first) * t.work;
  while (done < p.heads_k) {
    const std::int64_t rest = p.heads_k - done;
    const double hidden = (ends - arrives) / t.copy;  // heads whose copy hides
    if (static_cast<double>(p.heads_k) <= hidden || groups.size() + 2 >= kMostHeadGroups) break;
    const std::int64_t next = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(std::min(hidden, 1e9)), groups.back().count, rest);
    groups.push_back({done, next, true});
    done += next;
    arrives += static_cast<double>(next) * t.copy;
    ends = std::max(ends, arrives) + static_cast<double>(next) * t.work;
  }
  if (done < p.heads_k) groups.push_back({done, p.heads_k - done, false});
  return groups;
}

}  // namespace attn::dist
