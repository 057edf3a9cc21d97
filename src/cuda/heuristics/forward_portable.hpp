// Tile shapes of the portable forward kernels.
#pragma once

#include "cuda/forward/config.hpp"

namespace attn::cuda {

// Sets the shape of forward_sm80 or forward_simt in a configuration whose features are set. False
// where none suits.
bool shape_portable(ForwardConfig& config, const Problem& problem, Arch arch);
std::int64_t forward_portable_shared_bytes(const ForwardConfig& config) noexcept;

}  // namespace attn::cuda
