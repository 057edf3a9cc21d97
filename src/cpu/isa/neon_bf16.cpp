// AArch64 with BFDOT: bf16 operands. f32 problems run on the neon table, whose verbs of f32 serve
// here too (dispatch.cpp).
#define ATTN_ISA neon_bf16
#define ATTN_VECTOR_BYTES 16
#include "cpu/kernels/bf16.hpp"
#include "cpu/kernels/finite.hpp"
#include "cpu/kernels/matmul_bf16.hpp"
#include "cpu/kernels/matmul_few_rows.hpp"

namespace attn::cpu {
namespace neon_bf16 {

static constexpr OperandVerbs bf16_ops() {
  OperandVerbs ops{};
  ops.isa = InstructionSet::neon_bf16;
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

}  // namespace neon_bf16

extern const OperandVerbs kNeonBf16Ops;
const OperandVerbs kNeonBf16Ops = neon_bf16::bf16_ops();
}  // namespace attn::cpu
