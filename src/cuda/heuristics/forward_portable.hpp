// Tile shapes of the portable forward kernels.
#pragma once

#include "attn/problem.hpp"
#include "cuda/heuristics/forward_config.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// Sets the shape of forward_sm80 or forward_simt in a configuration whose features are set. False
// where none suits.
bool shape_portable(ForwardConfig& config, const Problem& problem, Arch arch);
}  // namespace attn::cuda
