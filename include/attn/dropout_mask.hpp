// Which elements of P a problem's dropout keeps, for tests, for frameworks that return the mask,
// and for whoever computes attention otherwise with the same dropout.
#pragma once

#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/problem.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

// kept[b, h, i, j] <- 1 where dropout of problem.dropout keeps P of batch b, query head h, query i
// and key j, 0 where it drops it: bit for bit what forward() and backward() do on every backend
// (docs/numerics.md). Queries and keys count from 0 within their sequence, as in expressions, also
// of packed and paged problems.
//
// kept: u8 [batch, heads_q, seqlen_q, seqlen_k], strides free but not 0 for sizes above 1, on the
// CPU or a CUDA device of sm_80 and up. Sizes that the problem leaves at 0 are taken from it; those
// that are set must be its own. Of the problem only these four sizes and `dropout` matter: mask,
// lengths and all else do not, and every element is written. Without dropout (probability 0, also
// after rounding to a multiple of 2^-15) all are kept.
//
// On a GPU the work is put into context.stream and the call returns; the first one on a device
// compiles a kernel, as forward() does. On the CPU context.executor does the work. Throws
// Error(invalid_argument) before anything is written, Error(unavailable | unsupported | device) for
// a GPU that cannot be used. Thread-safe.
void dropout_mask(const Problem& problem, const Tensor& kept, const Context& context = {});
// This overload is for problem.dropout.rng_state: it reads seed and offset from `rng_state`
// (Inputs::rng_state, on the device of `kept`) while the work runs. All else is as above.
void dropout_mask(const Problem& problem, const Tensor& kept, const Tensor& rng_state,
                  const Context& context);

}  // namespace attn
