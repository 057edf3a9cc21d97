// Results of packed tensors behind the last sequence.
#pragma once

#include "attn/context.hpp"
#include "attn/problem.hpp"
#include "attn/run.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

// Whether a run writes such rows: one launch more.
bool has_packed_tail(const Problem& problem, Phase phase);

// Puts into the stream: O <- 0 and LSE <- -inf, or dQ, dK and dV <- 0, in rows from
// cu_seqlens[batch] on. Results that are not given are left out. Can be captured in a graph.
void write_packed_tail(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                       const Context& context);
void write_packed_tail(const Problem& problem, const Inputs& inputs, const Gradients& gradients,
                       const Context& context);

// wide: cu_seqlens is of int64.
Source packed_tail_source(bool wide = false);

}  // namespace attn::cuda
