// Tile shapes of the Hopper rungs of matrix products that stay on their multiprocessors or share
// tiles: data with a reason beside each row, and the estimate that chooses among them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cuda/matmul/matmul_sizes.hpp"

namespace attn::cuda {

struct MatmulSm90Shape {
  MatmulRung rung;
  MatmulShape shape;
  std::string_view reason;
};
std::span<const MatmulSm90Shape> matmul_sm90_shapes();

// Whether B, k x n elements of so many bytes, is read once, by a single row of tiles, and is more
// than L2 keeps until the next call: then it comes from memory, and need not stay.
bool streams_b(std::int64_t n, std::int64_t k, std::int64_t element_bytes, std::int64_t m_tiles);

// Clock cycles that a product takes by this shape, about: docs/matmul.md has the terms.
double matmul_sm90_cycles(const MatmulSizes& sizes, const MatmulSm90Shape& row, int sm_count);

// The row of the least estimate, among those of `rung`, or of all where `any`, within the limits.
const MatmulSm90Shape& choose_matmul_sm90(const MatmulSizes& sizes, MatmulRung rung, bool any,
                                          int sm_count, const MatmulTileLimits& limits = {});

}  // namespace attn::cuda
