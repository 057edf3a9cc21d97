// Sums of tensor cores, of many columns at once.
#pragma once

#include <cstdint>

#include "reference/tensor_core.hpp"

namespace attn::reference {

// sums[c] becomes tensor_core_sum() of sums[c] and a[0] x[0][c] + a[1] x[1][c] + ..., of at most
// core.terms products, for each of n columns c: bit by bit, but for the sign and the payload of a
// NaN. No x overlaps sums. Thread-safe.
void tensor_core_sums(float* sums, std::int64_t n, const float* a, const float* const* x, int terms,
                      const TensorCore& core);

}  // namespace attn::reference
