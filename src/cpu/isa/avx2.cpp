// AVX2, FMA and F16C: eight f32 lanes.
#define ATTN_ISA avx2
#define ATTN_VECTOR_BYTES 32
#include "cpu/kernels/table.hpp"

namespace attn::cpu {
extern const TileOps kAvx2Ops;
const TileOps kAvx2Ops = avx2::f32_ops(InstructionSet::avx2);
}  // namespace attn::cpu
