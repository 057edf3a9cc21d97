// What every backend keeps in Plan::state first.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attn/plan.hpp"
#include "core/plan_record.hpp"
#include "core/problem/places.hpp"

namespace attn::core {

// The backend and the phase that a plan was made for: they say which type its state has; and what
// its fields were. A state
// derives from this, and Plan::state points at this part of it.
struct MadeFor {
  Backend backend;
  Phase phase;
  PlanRecord record{};
  // Of a part of a larger problem: where it stands in that. Null of all others.
  std::shared_ptr<const Places> places{};
  // Inputs::cu_seqlens of that part, where a GPU looks for places; empty where a layout is dense.
  std::vector<std::int32_t> starts_q{}, starts_k{};
};

// Null where the plan has none: it was moved from, or nobody made it.
inline const MadeFor* made_for(const Plan& plan) noexcept {
  return static_cast<const MadeFor*>(plan.state.get());
}

}  // namespace attn::core
