// AVX-512 with VDPBF16PS: bf16 operands. f32 problems run on the avx512 table, whose verbs of f32
// serve here too (dispatch.cpp).
#define ATTN_ISA avx512_bf16
#define ATTN_VECTOR_BYTES 64
#include "cpu/kernels/table_bf16.hpp"

namespace attn::cpu {
extern const OperandVerbs kAvx512Bf16Ops;
const OperandVerbs kAvx512Bf16Ops = avx512_bf16::bf16_ops(InstructionSet::avx512_bf16);
}  // namespace attn::cpu
