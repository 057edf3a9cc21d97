// Tile shapes of the portable backward kernels that sum in a fixed order.
#pragma once

#include "cuda/backward/config.hpp"

namespace attn::cuda {

// Sets the shape in a configuration whose kernel, gradient and features are set.
void set_backward_shape(BackwardConfig& config);
// Whether one launch can hold dK and dV of a tile.
bool holds_dk_and_dv(BackwardKernel kernel, const Problem& problem);
std::int64_t backward_portable_shared_bytes(const BackwardConfig& config) noexcept;

}  // namespace attn::cuda
