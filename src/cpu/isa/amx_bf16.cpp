// AMX tiles for bf16 operands. f32 problems run on the avx512 table, whose verbs of f32 serve here
// too (dispatch.cpp).
#define ATTN_ISA amx_bf16
#define ATTN_VECTOR_BYTES 64
#include "cpu/kernels/amx.hpp"
#include "cpu/kernels/amx_backward.hpp"
#include "cpu/kernels/decode_amx.hpp"
#include "cpu/kernels/finite.hpp"
#include "cpu/kernels/matmul_amx.hpp"
#include "cpu/kernels/matmul_few_rows_amx.hpp"
#include "cpu/kernels/products.hpp"

namespace attn::cpu {
namespace amx_bf16 {

static constexpr OperandVerbs amx_ops() {
  OperandVerbs ops{};
  ops.isa = InstructionSet::amx_bf16;
  ops.operand = DType::bf16;
  ops.rows = kRows;
  ops.dim_multiple = kTileDepth;
  ops.q_blocks = 1;
  ops.enter = configure_tiles;
  ops.leave = release_tiles;
  ops.pack_q = pack_q_bf16;
  ops.pack_k = pack_k_amx;
  ops.pack_v = pack_v_amx;
  ops.all_finite = all_finite<DType::bf16>;
  ops.scores = scores_each<scores_amx>;
  ops.softmax = softmax_amx;
  ops.accumulate = accumulate_each<accumulate_amx>;
  ops.pack_rows = pack_row_pairs;
  ops.probabilities = probabilities_amx;
  ops.softmax_gradient = softmax_gradient_amx;
  ops.round_gradients = round_gradients_amx;
  ops.accumulate_rows = accumulate_rows_amx;
  ops.product = product_amx();
  ops.few_rows = few_rows_amx();
  ops.decode = {configure_decode_tiles, release_tiles,       decode_pack_q_amx,
                decode_scores_amx,      decode_stage_values, decode_accumulate_staged_amx};
  ops.peak_flops = peak_flops_amx;
  return ops;
}

}  // namespace amx_bf16

extern const OperandVerbs kAmxBf16Ops;
const OperandVerbs kAmxBf16Ops = amx_bf16::amx_ops();
}  // namespace attn::cpu
