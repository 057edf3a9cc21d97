// Dot products of rows that lie where the caller has them.
#pragma once

#include "cpu/kernels/convert.hpp"
#include "cpu/kernels/pack_f32.hpp"

namespace attn::cpu::ATTN_ISA {

// Partial sums of up to kLanes rows, a vector a row, are transposed and then added as vectors.
static void dot_rows(const std::byte* const* x, const std::byte* const* y, int count, int dim,
                     DType source, float* dot) {
  const int whole = dim / kLanes * kLanes;
  for (int r0 = 0; r0 < count; r0 += kLanes) {
    const int rows = count - r0 < kLanes ? count - r0 : kLanes;
    F sum[kLanes] = {};
    for (int r = 0; r < rows; ++r) {
      const std::byte *a = x[r0 + r], *b = y[r0 + r];
      for (int d = 0; d < whole; d += kLanes) {
        sum[r] = fma(load_row(a, d, source), load_row(b, d, source), sum[r]);
      }
      if (whole < dim) {
        sum[r] = fma(load_row_part(a, whole, dim - whole, source),
                     load_row_part(b, whole, dim - whole, source), sum[r]);
      }
    }
    transpose(sum);
    for (int i = 1; i < kLanes; ++i) sum[0] += sum[i];
    for (int r = 0; r < rows; ++r) dot[r0 + r] = sum[0][r];
  }
}

}  // namespace attn::cpu::ATTN_ISA
