// Which K, V heads a rank of GPUs works on one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "attn/plan.hpp"

namespace attn::dist {

struct PlanData;

// Each group is a launch or several, of some microseconds.
inline constexpr std::size_t kMostHeadGroups = 6;

// K, V heads [first, first + count) with their query heads: a call of its own. Attention is
// independent over heads, so nothing is merged, and where one call of all heads splits no keys no
// bit differs from it.
struct HeadGroup {
  std::int64_t first = 0, count = 0;
  // Its K and V come by themselves, before those of the groups behind it. Groups that are not
  // packed come last and wait for one copy of all heads, whose rows are contiguous for the caller's
  // tensors too.
  bool packed = false;
  // Of the rank's rows; none where it has none.
  std::optional<attn::Plan> plan{};
};

// Such groups that copies of later ones hide behind the work of earlier ones: the first as small as
// fills a GPU, as nothing hides its copy. The same on all ranks. One group where the mask or score
// reads `head`, where elements are dropped, and backward: few heads at once take 1.1 times as long
// there as all do, which is more than the copies take that groups would hide.
std::vector<HeadGroup> head_groups(const PlanData& plan, Phase phase);

}  // namespace attn::dist
