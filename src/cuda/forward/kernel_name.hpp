// Tile shapes of forward_sm90 by name (cuda/kernel_parts.hpp).
#pragma once

#include <string_view>

#include "cuda/heuristics/forward_sm90.hpp"

namespace attn::cuda {

// `shape` with the parts that `text` names: wg<warpgroups> n<keys> s<stages of K and V>
// k<stages of K> q<stages of Q> p<registers of the producer> turns noturns. Consumers get the
// registers that are left. Throws Error(invalid_argument) naming the part and what is accepted.
ForwardSm90Shape with_parts(ForwardSm90Shape shape, std::string_view text);

}  // namespace attn::cuda
