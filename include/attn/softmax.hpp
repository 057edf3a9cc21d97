// Softmax of the rows of a matrix, the two ways that lead to FlashAttention, and its largest
// elements (Milakov and Gimelshein 2018).
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

enum class SoftmaxAlgorithm : std::uint8_t {
  three_pass,  // safe softmax: maximum, sum of exponentials, normalisation; reads x three times
  online,  // Milakov and Gimelshein 2018, algorithm 3: maximum and sum in one pass; reads x twice
};
// As spelled here; "unknown" for other values.
std::string_view name(SoftmaxAlgorithm algorithm) noexcept;

// y[i, :] <- exp(x[i, :] - max) / sum. x, y: f32 [rows, columns], last dimension contiguous, all
// tensors on one device; y may be x. lse (f32 [rows], any stride, optional) <- log of the sum of
// exponentials. A row of -inf gives y = 0, lse = -inf; one with NaN or +inf gives NaN.
//
// y differs from the exact value by at most about 2^-21 + 2^-24 |x - max| of it, on a GPU, where
// sums are f32, by another (columns / 256 + 8) 2^-24. Online, each new maximum rescales the sum,
// with 2^-23 of it: that counts in rows that grow nearly all the way. Checks, then writes; throws
// Error(invalid_argument | unavailable | device). Thread-safe. On a CPU rows are shared by
// context.executor; on a GPU, where x has less than 2^31 columns, the work is put into
// context.stream.
void softmax(const Tensor& x, const Tensor& y, const Tensor& lse = {},
             SoftmaxAlgorithm algorithm = SoftmaxAlgorithm::online, const Context& context = {});

inline constexpr std::int64_t kMostSoftmaxTop = 32;

// The k largest elements of each row of softmax(x) and their columns, largest first, of equal ones
// the first column first (the same paper, algorithm 4, by `online`, which reads x once and writes
// nothing else; `three_pass` reads it three times). values: f32 [rows, k], columns: i32 [rows, k],
// any strides; k is 1 to kMostSoftmaxTop, x has less than 2^31 columns. Where a row has fewer
// elements above -inf, the rest of values is 0 and of columns -1. A row with NaN or +inf gives NaN,
// and columns mean nothing. The rest is as of softmax().
void softmax_top(const Tensor& x, const Tensor& values, const Tensor& columns,
                 const Tensor& lse = {}, SoftmaxAlgorithm algorithm = SoftmaxAlgorithm::online,
                 const Context& context = {});

}  // namespace attn
