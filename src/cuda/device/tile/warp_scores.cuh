// Scores of one warp from the tiles that warpgroup products read, in the same registers: for the
// rare block that one warp must see again when the others need not.
#pragma once

#include "device.cuh"
#include "ptx/mma.cuh"
#include "tile/swizzle.cuh"

namespace attn::device {

// s <- Q K^T for rows row0 .. row0 + 15 of q and all kCount * 2 keys. Panels are 64 columns wide.
template <class Element, int kSteps, int kCount>
ATTN_DEVICE void warp_scores(float (&s)[kCount], unsigned q, int row0, int q_panel_bytes,
                             unsigned k, int k_panel_bytes) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = 0;
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    const unsigned qp = q + static_cast<unsigned>(step / 4 * q_panel_bytes);
    const unsigned kp = k + static_cast<unsigned>(step / 4 * k_panel_bytes);
    const int chunk = step % 4 * 2;
    unsigned a[4];
    load_matrices(a, swizzled(qp, row0 + lane % 16, chunk + lane / 16));
#pragma unroll
    for (int j = 0; j < kCount / 8; ++j) {  // 16 keys
      unsigned b[4];
      load_matrices(b, swizzled(kp, 16 * j + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
      multiply(Element{}, s + 8 * j, a, b[0], b[1]);
      multiply(Element{}, s + 8 * j + 4, a, b[2], b[3]);
    }
  }
}

}  // namespace attn::device
