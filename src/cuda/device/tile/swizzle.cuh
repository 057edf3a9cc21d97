// Panels of shared memory as the copy engine and warpgroup products know them: rows of 128 bytes,
// 64 columns of 16 bits, whose chunks of 16 bytes change places with the row so that eight rows of
// one column lie in different banks.
#pragma once

#include "device.cuh"

namespace attn::device {

// Address of the 16 bytes number `chunk` of a row.
ATTN_DEVICE unsigned swizzled(unsigned panel, int row, int chunk) {
  return panel + static_cast<unsigned>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

}  // namespace attn::device
