// Writing down which elements of P dropout keeps.
#pragma once

#include "attn/context.hpp"
#include "attn/problem.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

// Puts it into context.stream. The problem has batch, heads_q, seqlen_q and seqlen_k; kept is u8 of
// this shape in memory of its device. Throws Error(unavailable | unsupported | device).
// rng_state: in that memory too, where the problem's dropout asks for it.
void dropout_mask(const Problem& problem, const Tensor& kept, const Tensor& rng_state,
                  const Context& context);

// Its kernel: one for all problems, and one for those whose state is a tensor.
Source dropout_mask_source(bool rng_state);

}  // namespace attn::cuda
