// Sums of tensors on a GPU.
#pragma once

#include <cstddef>
#include <span>

#include "attn/context.hpp"
#include "attn/tensor.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

inline constexpr std::size_t kMostRowTerms = 16;

// Puts into context.stream: sums <- the terms, added in f32 in their order and rounded once. All
// are [batch, rows, heads, columns] or [rows, heads, columns], of one shape and device, with
// contiguous columns; no more than kMostRowTerms. The terms have one floating dtype of 16 or 32
// bits, and sums has one. None gives zeros. Throws Error(unavailable | device).
void row_sums(std::span<const Tensor> terms, const Tensor& sums, const Context& context);

}  // namespace attn::cuda
