// AVX-512 F, BW, DQ, VL: sixteen f32 lanes.
#define ATTN_ISA avx512
#define ATTN_VECTOR_BYTES 64
#include "cpu/kernels/table.hpp"

namespace attn::cpu {
extern const TileOps kAvx512Ops;
const TileOps kAvx512Ops = avx512::f32_ops(InstructionSet::avx512);
}  // namespace attn::cpu
