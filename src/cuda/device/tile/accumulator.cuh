// Accumulators of m64nNk16 products. A warp holds 16 rows; a thread the rows lane / 4 and that + 8;
// of every 8 columns the pair 2 (lane % 4). Register 4 j + 2 i + c is row i of the two, column
// 8 j + 2 (lane % 4) + c.
#pragma once

#include "device.cuh"
#include "ptx/math.cuh"
#include "tile/scalar.cuh"
#include "tile/transpose_quad.cuh"

namespace attn::device {

// 0 where all are finite, else NaN.
template <int kCount>
ATTN_DEVICE float zero_if_finite(const float (&x)[kCount]) {
  float zero[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kCount; ++i) zero[i % 2] = fmaf(x[i], 0.f, zero[i % 2]);
  return zero[0] + zero[1];
}

// Scores as the A operand of the second product: 16 keys are four registers.
template <class Element, int kCount>
ATTN_DEVICE void to_operand(const float (&s)[kCount], unsigned (&p)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
}

struct alignas(16) Words4 {
  unsigned x, y, z, w;
};

// Row i of an accumulator to `row` (8-byte aligned, kColumns elements), in float32; `write` says
// whether the row exists.
template <int kColumns>
ATTN_DEVICE void store_row_f32(const float (&o)[kColumns / 2], int i, float factor, float* row,
                               bool write) {
  float2* at = reinterpret_cast<float2*>(row) + threadIdx.x % 4;
  if (!write) return;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    at[4 * j] = make_float2(o[4 * j + 2 * i] * factor, o[4 * j + 2 * i + 1] * factor);
  }
}

// The same in elements of Element's type, to which 16-bit ones are rounded; 16-byte aligned. All
// threads of the warp must call.
template <class Element, int kColumns>
ATTN_DEVICE void store_row(const float (&o)[kColumns / 2], int i, float factor, void* row,
                           bool write) {
  if constexpr (kBytesOf<Element> == 4) {
    store_row_f32<kColumns>(o, i, factor, static_cast<float*>(row), write);
  } else {
    const int t = static_cast<int>(threadIdx.x % 4);
    constexpr int kWhole = kColumns / 32;
#pragma unroll
    for (int g = 0; g < kWhole; ++g) {
      unsigned w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int r = 4 * (4 * g + j) + 2 * i;
        w[j] = Element::pack(o[r] * factor, o[r + 1] * factor);
      }
      transpose_quad(w);
      if (write) static_cast<Words4*>(row)[4 * g + t] = {w[0], w[1], w[2], w[3]};
    }
#pragma unroll
    for (int j = 4 * kWhole; j < kColumns / 8; ++j) {
      const unsigned w = Element::pack(o[4 * j + 2 * i] * factor, o[4 * j + 2 * i + 1] * factor);
      if (write) static_cast<unsigned*>(row)[4 * j + t] = w;
    }
  }
}

struct alignas(8) Words2 {
  unsigned x, y;
};
struct alignas(16) Floats4 {
  float x[4];
};
// Four neighbours of a row, rounded likewise; `to` is aligned to all of them.
template <class Element>
ATTN_DEVICE void store_four(void* to, const float (&x)[4]) {
  if constexpr (kBytesOf<Element> == 4) {
    *static_cast<Floats4*>(to) = {{x[0], x[1], x[2], x[3]}};
  } else {
    *static_cast<Words2*>(to) = {Element::pack(x[0], x[1]), Element::pack(x[2], x[3])};
  }
}

}  // namespace attn::device
