// to_string(Plan) of several ranks.
#include <fmt/format.h>

#include <algorithm>

#include "dist/plan_data.hpp"

namespace attn::dist {
namespace {

constexpr std::size_t kMostRangesTold = 8;
constexpr int kMostRanksTold = 16;

std::string text_of(const RowList& list) {
  if (list.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < list.size() && i < kMostRangesTold; ++i) {
    text += fmt::format("{}{}-{}", i == 0 ? "" : " ", list[i].begin, list[i].end - 1);
  }
  if (list.size() > kMostRangesTold) {
    text += fmt::format(" and {} more", list.size() - kMostRangesTold);
  }
  return text;
}

}  // namespace

std::string to_string(const Plan& plan) {
  const PlanData& data = plan.data();
  std::string text =
      fmt::format("{}\non {} ranks, largest area {:.1f} % above the mean\n",
                  attn::to_string(data.problem), data.ranks, 100 * (1 / plan.balance() - 1));
  double total = 0;
  for (int r = 0; r < data.ranks; ++r) total += plan.area(r);
  const int told = std::min(data.ranks, kMostRanksTold);
  for (int r = 0; r < told; ++r) {
    double forward = 0, backward = 0;
    for (int other = 0; other < data.ranks; ++other) {
      forward += plan.bytes(other, r, Phase::forward);
      backward += plan.bytes(other, r, Phase::backward);
    }
    text += fmt::format(
        "rank {}: rows {}; {:.1f} % of the area; receives {:.3f} MB forward{}\n", r,
        text_of(plan.rows(r)), total == 0 ? 0 : 100 * plan.area(r) / total, forward / 1e6,
        is_forward_alone(data.problem) ? "" : fmt::format(", {:.3f} backward", backward / 1e6));
    if (plan.keys(r) != plan.rows(r)) text += fmt::format("  keys {}\n", text_of(plan.keys(r)));
    for (int other = 0; other < data.ranks; ++other) {
      const double bytes = plan.bytes(other, r, Phase::forward);
      if (bytes > 0) {
        text += fmt::format("  from rank {}: keys {}, {:.3f} MB\n", other,
                            text_of(moved_rows(data, other, r)), bytes / 1e6);
      }
    }
  }
  if (told < data.ranks) text += fmt::format("and {} more ranks\n", data.ranks - told);
  for (const std::string& reason : data.reasons) text += "- " + reason + "\n";
  return text;
}

}  // namespace attn::dist
