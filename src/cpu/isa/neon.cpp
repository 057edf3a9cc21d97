// AArch64: four f32 lanes. Every such CPU has these instructions.
#define ATTN_ISA neon
#define ATTN_VECTOR_BYTES 16
#include "cpu/kernels/table.hpp"

namespace attn::cpu {
extern const TileOps kNeonOps;
const TileOps kNeonOps = neon::f32_ops(InstructionSet::neon);
}  // namespace attn::cpu
