// Tile shapes of the portable backward kernels that sum in a fixed order.
#pragma once

#include "attn/problem.hpp"
#include "cuda/heuristics/backward_config.hpp"

namespace attn::cuda {

// Sets the shape in a configuration whose kernel, gradient and features are set.
void set_backward_shape(BackwardConfig& config);
// Whether one launch can hold dK and dV of a tile.
bool holds_dk_and_dv(BackwardKernel kernel, const Problem& problem);

}  // namespace attn::cuda
