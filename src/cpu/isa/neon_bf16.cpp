// AArch64 with BFDOT: bf16 operands. f32 problems run on the neon table, whose verbs of f32 serve
// here too (dispatch.cpp).
#define ATTN_ISA neon_bf16
#define ATTN_VECTOR_BYTES 16
#include "cpu/kernels/table_bf16.hpp"

namespace attn::cpu {
extern const OperandVerbs kNeonBf16Ops;
const OperandVerbs kNeonBf16Ops = neon_bf16::bf16_ops(InstructionSet::neon_bf16);
}  // namespace attn::cpu
