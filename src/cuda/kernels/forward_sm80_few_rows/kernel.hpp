// forward_sm80_few_rows (device/kernels/forward_sm80_few_rows.cuh): decoding, where a K, V head has
// a few rows and many keys.
#pragma once

#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

ForwardChoice choose_forward_sm80_few_rows(const ForwardRequest& request);
std::int32_t split_forward_sm80_few_rows(const Problem& problem, const ForwardConfig& config,
                                         const Multiprocessors& device);

}  // namespace attn::cuda
