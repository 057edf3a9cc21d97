// Fills the table of verbs for the instruction set that this translation unit is built for.
#pragma once

#include "cpu/kernels/append.hpp"
#include "cpu/kernels/decode.hpp"
#include "cpu/kernels/dot_rows.hpp"
#include "cpu/kernels/dropout.hpp"
#include "cpu/kernels/expression.hpp"
#include "cpu/kernels/f64.hpp"
#include "cpu/kernels/finite.hpp"
#include "cpu/kernels/gradient_sums.hpp"
#include "cpu/kernels/matmul.hpp"
#include "cpu/kernels/matmul_few_rows.hpp"
#include "cpu/kernels/pack_f32.hpp"
#include "cpu/kernels/peak.hpp"
#include "cpu/kernels/products.hpp"
#include "cpu/kernels/softmax.hpp"

namespace attn::cpu::ATTN_ISA {

template <F (*kExp2)(F) = exp2>
static constexpr TileOps f32_ops(InstructionSet isa) {
  TileOps ops{};
  ops.isa = isa;
  ops.operand = DType::f32;
  ops.rows = kRows;
  ops.dim_multiple = 1;
  ops.q_blocks = kRegisterBlocks;
  ops.pack_q = pack_q_f32;
  ops.pack_k = pack_rows_f32;
  ops.pack_v = pack_rows_f32;
  ops.all_finite = all_finite<DType::f32>;
  ops.nonfinite_rows = nonfinite_rows;
  ops.unpack_o = unpack_o;
  ops.store_row = store_row_f32;
  ops.scores = scores<F32Operand>;
  ops.row_max = row_max;
  ops.softmax = softmax_f32<kExp2>;
  ops.accumulate = accumulate<F32Operand>;
  ops.dropout_keep = dropout_keep;
  ops.evaluate_score = evaluate_score;
  ops.evaluate = evaluate;
  ops.apply_mask = apply_mask;
  ops.dot_rows = dot_rows;
  ops.probabilities = probabilities;
  ops.score_gradient = score_gradient;
  ops.multiply_gradient = multiply_gradient;
  ops.sum_gradient = sum_gradient;
  ops.pack_rows = pack_weighted_rows_f32;
  ops.accumulate_rows = accumulate_rows<F32Operand>;
  ops.decode_scores = decode_scores;
  ops.decode_softmax = decode_softmax<kExp2>;
  ops.decode_accumulate = decode_accumulate;
  ops.product = product_f32();
  ops.few_rows = few_rows_of<F32Words>();
  ops.f64 = verbs_f64();
  ops.append = {append_row};
  ops.peak_flops = peak_flops_f32;
  return ops;
}

}  // namespace attn::cpu::ATTN_ISA
