// The shapes of the kernels that are in the orders of the papers.
#pragma once

#include <string_view>

#include "attn/problem.hpp"
#include "cuda/heuristics/forward_config.hpp"

namespace attn::cuda {

// parts: of the name of forward_flash_attention, "n128" (B_c, a multiple of 64) and "sparse".
// False where the problem's head sizes are too large for a block of K and V in shared memory.
bool shape_of_papers(ForwardConfig& config, const Problem& problem, std::string_view parts);

}  // namespace attn::cuda
