// Writing down which elements of P dropout keeps.
#pragma once

#include "attn/context.hpp"
#include "attn/problem.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

// Puts it into context.stream. The problem has batch, heads_q, seqlen_q and seqlen_k; kept is u8 of
// this shape in memory of its device. Throws Error(unavailable | unsupported | device).
void dropout_mask(const Problem& problem, const Tensor& kept, const Context& context);

// Its kernel: one for all problems.
Source dropout_mask_source();

}  // namespace attn::cuda
