// Tile shapes of the rung `pipelined`, which multiplies by mma.sync: data with a reason beside each
// row, what follows from a shape, and the estimate that chooses among them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cuda/jit/compile.hpp"
#include "cuda/matmul/matmul_sizes.hpp"

namespace attn::cuda {

struct MatmulSm80Shape {
  MatmulShape shape;  // with what is 0 by complete_matmul_sm80
  std::string_view reason;
};
std::span<const MatmulSm80Shape> matmul_sm80_shapes();

// What is 0 of warps, depth and stages, as the table has it for these rows and columns, or by the
// room that registers and shared memory leave.
MatmulShape complete_matmul_sm80(MatmulShape shape, Arch arch);
// Why there is no such complete shape; empty where there is.
std::string refuse_matmul_sm80(const MatmulShape& shape, Arch arch);

// What follows from a complete shape: warps below each other, bytes of a block's ring, and blocks
// of threads that registers and shared memory of a multiprocessor are shared by.
int warps_down_of(const MatmulShape& shape);
std::int64_t ring_bytes_of(const MatmulShape& shape);
int blocks_of(const MatmulShape& shape, Arch arch);

// Clock cycles that a product takes by this complete shape, about: docs/matmul.md has the terms.
double matmul_sm80_cycles(const MatmulSizes& sizes, const MatmulShape& shape, Arch arch,
                          int sm_count);

// The row of the least estimate within the limits.
const MatmulSm80Shape& choose_matmul_sm80(const MatmulSizes& sizes, Arch arch, int sm_count,
                                          const MatmulTileLimits& limits = {});

}  // namespace attn::cuda
