// Lists of blocks of keys become a byte for each block (attn/block_list.hpp). A warp clears a row
// and marks what its list names.
//
// kWide: lists are of long long.
// Grid: any number of blocks of kBlockListThreads.
#pragma once

#include "device.cuh"
#include "index.cuh"
#include "params.cuh"

namespace attn::device {

template <bool kWide>
ATTN_DEVICE void write_block_mask(const BlockListParams& p) {
  constexpr int kWarps = kBlockListThreads / 32;
  // Unsigned: past the last number, which may be 2^31 - 1, they do not overflow.
  const unsigned lane = threadIdx.x % 32;
  const auto blocks_k = static_cast<unsigned>(p.blocks_k);
  const auto entries = static_cast<unsigned>(p.entries);
  for (long long row = blockIdx.x * static_cast<long long>(kWarps) + threadIdx.x / 32; row < p.rows;
       row += static_cast<long long>(gridDim.x) * kWarps) {
    const long long index[3] = {row / p.blocks_q / p.heads, row / p.blocks_q % p.heads,
                                row % p.blocks_q};
    const auto* list = indices<kWide>(p.lists);
    unsigned char* bytes = p.blocks;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      list += index[d] * p.list_strides[d];
      bytes += index[d] * p.block_strides[d];
    }
    for (unsigned i = lane; i < blocks_k; i += 32) bytes[i] = 0;
    __syncwarp();
    for (unsigned i = lane; i < entries; i += 32) {
      const int named = to_index(list[i]);
      if (named >= 0 && named < p.blocks_k) bytes[named] = 1;
    }
  }
}

}  // namespace attn::device
