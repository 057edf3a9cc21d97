// Any CPU that GCC compiles for: four f32 lanes, which are SSE2, VSX, ... or plain scalars. AArch64
// has neon.cpp instead.
#define ATTN_ISA portable
#define ATTN_VECTOR_BYTES 16
#include "cpu/kernels/table.hpp"

namespace attn::cpu {
extern const TileOps kPortableOps;
const TileOps kPortableOps = portable::f32_ops(InstructionSet::portable);
}  // namespace attn::cpu
