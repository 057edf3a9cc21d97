// V of 8-bit floats laid out for their products before the kernel that reads it
// (device/kernels/transpose_values.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cuda/jit/compile.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// Whether a pass of this choice reads V so.
inline bool transposes_values(const ForwardConfig& config) {
  return config.shape->reads_transposed();
}
// Bytes for any V of the problem.
core::Size transposed_bytes(const Problem& problem, const ForwardConfig& config);

// u8 [batch, heads_k, head_dim_v + 8, columns], of a packed V [1, ...], at `workspace`, aligned to
// 128 bytes. Sequences of a packed V begin as transposed_column() says.
Tensor transposed_values(const Problem& problem, const ForwardConfig& config, const Tensor& v,
                         std::byte* workspace);

Source transpose_source(const ForwardConfig& config);
// Fills it from Inputs::v.
void launch_transpose(const Kernel& kernel, const Problem& problem, const ForwardConfig& config,
                      const Inputs& inputs, const Tensor& transposed, void* stream);

}  // namespace attn::cuda
