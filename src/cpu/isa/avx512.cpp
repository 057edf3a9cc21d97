// AVX-512 F, BW, DQ, VL: sixteen f32 lanes.
#define ATTN_ISA avx512
#define ATTN_VECTOR_BYTES 64
#include "cpu/kernels/table.hpp"

namespace attn::cpu {
extern const TileOps kAvx512Ops[2];  // exp2 by rounding; by reduction, for Intel
const TileOps kAvx512Ops[2] = {avx512::f32_ops(InstructionSet::avx512),
                               avx512::f32_ops<avx512::exp2_by_reduction>(InstructionSet::avx512)};
}  // namespace attn::cpu
