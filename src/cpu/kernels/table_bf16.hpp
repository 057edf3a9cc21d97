// The table of an instruction set that multiplies pairs of bf16.
#pragma once

#include "cpu/kernels/bf16.hpp"
#include "cpu/kernels/finite.hpp"
#include "cpu/kernels/matmul_bf16.hpp"
#include "cpu/kernels/matmul_few_rows.hpp"

namespace attn::cpu::ATTN_ISA {

static constexpr OperandVerbs bf16_ops(InstructionSet isa) {
  OperandVerbs ops{};
  ops.isa = isa;
  ops.operand = DType::bf16;
  ops.rows = kRows;
  ops.dim_multiple = 1;
  ops.q_blocks = kRegisterBlocks;
  ops.pack_q = pack_q_bf16;
  ops.pack_k = pack_k_bf16;
  ops.pack_v = pack_v_bf16;
  ops.all_finite = all_finite<DType::bf16>;
  ops.scores = scores<Bf16Operand>;
  ops.softmax = softmax_bf16;
  ops.accumulate = accumulate<Bf16Operand>;
  ops.pack_rows = pack_weighted_rows_bf16;
  ops.probabilities = probabilities;
  ops.round_gradients = round_gradients;
  ops.accumulate_rows = accumulate_rows<Bf16Operand>;
  ops.product = product_bf16();
  ops.few_rows = few_rows_of<Bf16Pairs>();
  ops.peak_flops = peak_flops_bf16;
  return ops;
}

}  // namespace attn::cpu::ATTN_ISA
