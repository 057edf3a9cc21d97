// Sums over rows of a tile in shared memory that leave out what has weight 0: the products of the
// Hopper backward kernel would take a NaN or an infinity that the mask hides times 0 for NaN.
#pragma once

#include "device.cuh"
#include "ptx/mbarrier.cuh"
#include "tile/scalar.cuh"
#include "tile/swizzle.cuh"

namespace attn::device {

// Reads an element or two of a panel, by row and column.
ATTN_DEVICE unsigned panel_word(unsigned panels, int panel_bytes, int row, int column) {
  const unsigned panel = panels + static_cast<unsigned>(column / 64 * panel_bytes);
  return static_cast<unsigned>(load_shared_word(swizzled(panel, row, column % 64 / 8) +
                                                static_cast<unsigned>(column % 8 / 2 * 4)));
}
template <class Element>
ATTN_DEVICE float panel_element(unsigned panels, int panel_bytes, int row, int column) {
  const unsigned word = panel_word(panels, panel_bytes, row, column);
  return Scalar<Element>::from(static_cast<unsigned short>(column % 2 == 0 ? word : word >> 16));
}

// sums (an accumulator of columns from column0 on) += weight(i, row) * the row, for rows 0 to kRows
// - 1 of the panels; i: row of the accumulator's two.
template <class Element, int kRows, int kCount, class Weight>
ATTN_DEVICE void add_seen(float (&sums)[kCount], Weight weight, unsigned panels, int panel_bytes,
                          int column0) {
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    const float weights[2] = {weight(0, row), weight(1, row)};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const unsigned pair = panel_word(panels, panel_bytes, row,
                                       column0 + 8 * j + 2 * static_cast<int>(threadIdx.x % 4));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float x = Scalar<Element>::from(static_cast<unsigned short>(pair >> (16 * half)));
          float& sum = sums[4 * j + 2 * i + half];
          if (weights[i] != 0) sum = fmaf(weights[i], x, sum);
        }
      }
    }
  }
}

// Whether any of `bytes` of panels of kRows rows of 16-bit elements is an infinity or NaN; of 128
// threads each looks at its share. Rows from `used` on, which nobody sees, become zeros: there may
// lie the next sequence, whose values are not to change the order of sums.
template <class Element, int kRows>
ATTN_DEVICE bool any_special(unsigned at, int bytes, int used) {
  // Where an exponent is all ones, it and its lowest bit add up to the sign's bit.
  constexpr unsigned kLow = Element::kExponent & (0u - Element::kExponent);
  unsigned sums = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x % 128) * 16; i < bytes; i += 2048) {
    if (i % (kRows * 128) / 128 >= used) {
      store_shared(at + static_cast<unsigned>(i), {0, 0, 0, 0});
      continue;
    }
    const Int4 v = load_shared(at + static_cast<unsigned>(i));
    for (const int x : {v.x, v.y, v.z, v.w}) {
      sums |= (static_cast<unsigned>(x) & Element::kExponent * 0x10001u) + kLow * 0x10001u;
    }
  }
  return (sums & 0x80008000u) != 0;
}

}  // namespace attn::device
