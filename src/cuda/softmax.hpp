// Softmax of rows on a GPU.
#pragma once

#include "attn/context.hpp"
#include "attn/softmax.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

// y is given, or values and columns; lse may be.
struct SoftmaxCall {
  Tensor x, y, values, columns, lse;
  SoftmaxAlgorithm algorithm;
};

// Puts it into context.stream. Arguments are valid and on one GPU. Throws Error(unavailable |
// device).
void softmax(const SoftmaxCall& call, const Context& context);

// The kernel of such a call.
Source softmax_source(const SoftmaxCall& call);

}  // namespace attn::cuda
