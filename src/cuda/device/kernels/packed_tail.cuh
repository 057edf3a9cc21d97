// Rows of packed results behind the last sequence, as of a buffer of tokens that is not full: they
// belong to nobody, so no tile writes them. How many there are is known on the device alone.
//
// kWide: cu_seqlens is of long long.
// Grid: any number of blocks of 256 threads for each tensor.
#pragma once

#include "device.cuh"
#include "index.cuh"
#include "params.cuh"

namespace attn::device {

template <bool kWide>
ATTN_DEVICE void write_packed_tail(const PackedTailParams& p) {
  const int count = p.count, block = static_cast<int>(blockIdx.x);
  const PackedTail& t = p.tails[block % count];
  const int of_row = t.heads * t.columns;
  for (long long row = to_index(*indices<kWide>(t.end)) + static_cast<long long>(block / count);
       row < t.rows; row += static_cast<int>(gridDim.x) / count) {
    for (int i = static_cast<int>(threadIdx.x); i < of_row; i += 256) {
      const long long at = row * t.row_stride + i / t.columns * t.head_stride + i % t.columns;
      if (t.element_bytes == 2) {
        static_cast<unsigned short*>(t.data)[at] = static_cast<unsigned short>(t.value);
      } else {
        static_cast<unsigned*>(t.data)[at] = t.value;
      }
    }
  }
}

}  // namespace attn::device
