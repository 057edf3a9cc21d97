// Words that the four threads of a quad exchange.
#pragma once

#include "device.cuh"

namespace attn::device {

// Transposes 4 x 4 words of a quad of lanes: word i of lane t goes to word t of lane i.
ATTN_DEVICE void transpose_quad(unsigned (&w)[4]) {
  const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
  // Exchange pairs of words with the lane two away, then words with the neighbour.
  const unsigned give0 = high ? w[0] : w[2], give1 = high ? w[1] : w[3];
  const unsigned got0 = __shfl_xor_sync(~0u, give0, 2), got1 = __shfl_xor_sync(~0u, give1, 2);
  const unsigned a0 = high ? got0 : w[0], a1 = high ? got1 : w[1];
  const unsigned b0 = high ? w[2] : got0, b1 = high ? w[3] : got1;
  const unsigned give2 = odd ? a0 : a1, give3 = odd ? b0 : b1;
  const unsigned got2 = __shfl_xor_sync(~0u, give2, 1), got3 = __shfl_xor_sync(~0u, give3, 1);
  w[0] = odd ? got2 : a0;
  w[1] = odd ? a1 : got2;
  w[2] = odd ? got3 : b0;
  w[3] = odd ? b1 : got3;
}

}  // namespace attn::device
