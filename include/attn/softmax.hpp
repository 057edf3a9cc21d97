// Softmax of the rows of a matrix, the two ways that lead to FlashAttention.
#pragma once

#include <cstdint>

#include "attn/export.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

enum class SoftmaxAlgorithm : std::uint8_t {
  three_pass,  // safe softmax: maximum, sum of exponentials, normalisation; reads x three times
  online,  // Milakov and Gimelshein 2018, algorithm 3: maximum and sum in one pass; reads x twice
};

// y[i, :] <- exp(x[i, :] - max) / sum. x, y: f32 [rows, columns], last dimension contiguous; y may
// be x. lse (f32 [rows], optional) <- log of the sum of exponentials. A row of -inf gives y = 0,
// lse = -inf.
void softmax(const Tensor& x, const Tensor& y, const Tensor& lse = {},
             SoftmaxAlgorithm algorithm = SoftmaxAlgorithm::online);

}  // namespace attn
