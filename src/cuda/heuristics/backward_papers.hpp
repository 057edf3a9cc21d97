// Blocks of keys and queries of the kernel of FlashAttention's own backward order.
#pragma once

#include <string_view>

#include "attn/problem.hpp"
#include "cuda/heuristics/backward_config.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// The part of a kernel's name that leaves out tiles which the mask empties (algorithm 5).
inline constexpr std::string_view kSkipsEmpty = "sparse";

// Sets the shape in a configuration whose kernel and features are set. parts: of the name of
// backward_flash_attention, "n16", "n32" or "n64" (B_c and B_r) and "sparse".
void set_backward_flash_shape(BackwardConfig& config, Arch arch, std::string_view parts);

}  // namespace attn::cuda
