// backward_flash_attention (device/kernels/backward_flash_attention.cuh): the order of the
// FlashAttention paper, by name only.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_flash_attention(const BackwardRequest& request);
// Sums of dQ.
core::Size backward_flash_attention_workspace(const Problem& problem, const BackwardConfig& config);
void place_backward_flash_attention(device::BackwardParams& to, const Problem& problem,
                                    const BackwardConfig& config, std::byte* at);

}  // namespace attn::cuda
