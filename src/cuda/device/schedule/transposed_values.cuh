// Where keys of V lie in its transposed form (kernels/transpose_values.cuh).
#pragma once

#include "device.cuh"

namespace attn::device {

// Where a sequence begins whose K is packed, from row `first` on: kUnit is what lengths are rounded
// up to. Example: with units of 128, sequences of 100, 200 and 10 keys begin in columns 0, 128 and
// 512, as rows 100 and 300 stand in units 0 and 2.
template <int kUnit>
ATTN_DEVICE int transposed_column(int first, int batch) {
  return (first / kUnit + batch) * kUnit;
}

// Rows behind those of V, of which the first holds ones, the others zeros: its product with P is
// the sum of P.
inline constexpr int kRowsOfOnes = 8;

// Of 16 keys in a row, 0 to 15, the one that lies in `place`: an accumulator's order
// (tile/accumulator.cuh) read as operands are. Example: places 0 to 7 have keys 0, 1, 8, 9, 2, 3,
// 10, 11.
ATTN_DEVICE constexpr int transposed_key(int place) {
  return place % 4 / 2 * 8 + place / 4 * 2 + place % 2;
}

}  // namespace attn::device
