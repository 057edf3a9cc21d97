// AVX-512 with VDPBF16PS: bf16 operands. f32 problems run on the avx512 table, whose verbs of f32
// serve here too (dispatch.cpp).
#define ATTN_ISA avx512_bf16
#define ATTN_VECTOR_BYTES 64
#include "cpu/kernels/decode_dot.hpp"
#include "cpu/kernels/table_bf16.hpp"

namespace attn::cpu {
namespace avx512_bf16 {

static constexpr OperandVerbs ops_with_decoding() {
  OperandVerbs ops = bf16_ops(InstructionSet::avx512_bf16);
  ops.decode = {nullptr,
                nullptr,
                decode_pack_q_dot,
                decode_scores_dot,
                decode_stage_values,
                decode_accumulate_staged_dot};
  return ops;
}

}  // namespace avx512_bf16

extern const OperandVerbs kAvx512Bf16Ops;
const OperandVerbs kAvx512Bf16Ops = avx512_bf16::ops_with_decoding();
}  // namespace attn::cpu
