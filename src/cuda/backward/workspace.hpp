// The workspace of the backward pass: LSE and D of each row, where the score may be large what far
// rows have beside them and whether there are any (device/softmax/far_rows.cuh), sums of the
// gradients of buffers, then what the kernel keeps (BackwardKernel::workspace).
#pragma once

#include <cstdint>

#include "core/tensor/size.hpp"
#include "cuda/plan/choose_backward.hpp"

namespace attn::cuda {

// The last bytes of what far rows have; the first word of them says whether there are any.
inline constexpr std::int64_t kAnyFarRowBytes = 16;
// Of the first two.
core::Size row_terms_bytes(const Problem& problem);
// The offset, in bytes, at which the last part begins: a multiple of 128.
core::Size kernel_offset(const Problem& problem, bool deterministic);

// Bytes of all. Throws Error(unsupported) for problems whose memory or grids no GPU has.
std::int64_t checked_workspace(const Problem& problem, const BackwardKernel& kernel,
                               const BackwardWish& wish);

}  // namespace attn::cuda
