// FlashAttention-2 in double, tile by tile: what the cpu backend runs for problems in f64. A row of
// tiles is written with the verbs of verbs.hpp; no sum depends on the number of threads.
#pragma once

#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cpu/attention.hpp"
#include "cpu/workers.hpp"

namespace attn::cpu::f64 {

inline constexpr int kBlockQ = kMaxRows;     // rows of a Q block, on every instruction set
inline constexpr int kMaxBlocksPerTask = 4;  // with them O of 128 rows: 128 KB at d = 128

void forward(const Attention& a, const Plan& plan, const Outputs& outputs, const Workers& workers);
void backward(const Attention& a, const Plan& plan, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients, const Workers& workers);

// Bytes that a run of the plan takes at most beside its sequences and bound expressions.
core::Size forward_bytes(const Plan& plan, const Expressions& expressions);
core::Size backward_bytes(const Plan& plan, const Expressions& expressions);

}  // namespace attn::cpu::f64
