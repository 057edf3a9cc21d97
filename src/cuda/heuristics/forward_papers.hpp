// The shapes of the kernels that are in the orders of the papers.
#pragma once

#include <string_view>

#include "cuda/forward/config.hpp"

namespace attn::cuda {

// parts: of the name of forward_flash_attention, "n128" (B_c, a multiple of 64) and "sparse".
// False where the problem's head sizes are too large for a block of K and V in shared memory.
bool shape_of_papers(ForwardConfig& config, const Problem& problem, std::string_view parts);

std::int64_t forward_papers_shared_bytes(const ForwardConfig& config) noexcept;

}  // namespace attn::cuda
