// forward_simt (device/kernels/forward_simt.cuh): float32 arithmetic without tensor cores.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_simt(const ForwardRequest& request);

// Its tiles, of rows of `group` heads: other kernels have its arithmetic.
Tiling forward_simt_tiling(const Problem& problem, int group);
// Keys, or rows, of its columns in shared memory, with what keeps them in different banks.
inline constexpr int kForwardSimtPad = 4;

}  // namespace attn::cuda
