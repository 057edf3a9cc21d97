// forward_flash_attention (device/kernels/forward_flash_attention.cuh): the order of the paper's
// algorithm 1, blocks of keys outside.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// parts: "n128" (B_c, a multiple of 64) and "sparse".
ForwardChoice choose_forward_flash_attention(const ForwardRequest& request);
// O, m and l between two blocks of keys.
core::Size forward_flash_attention_workspace(const Problem& problem);
void place_forward_flash_attention(device::ForwardParams& to, const Problem& problem,
                                   void* workspace);

}  // namespace attn::cuda
