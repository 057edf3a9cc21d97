// O += P V of one warp, where V lies in shared memory as SharedTile has it.
#pragma once

#include "device.cuh"
#include "ptx/mma.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

// o: kTiles times 16 rows, of 2 kColumns columns. p16: P as operands, 4 registers for 16 keys.
// v_lane: where this lane reads V (TileV::lane(tile, lane % 16, lane / 16)).
template <class Element, class TileV, int kTiles, int kColumns, int kRegisters>
ATTN_DEVICE void multiply_values(float (&o)[kTiles][kColumns],
                                 const unsigned (&p16)[kTiles][kRegisters], unsigned v_lane) {
#pragma unroll
  for (int step = 0; step < kRegisters / 4; ++step) {
#pragma unroll
    for (int j = 0; j < TileV::kChunks / 2; ++j) {
      unsigned v[4];
      load_matrices_transposed(v, TileV::further(v_lane, 16 * step, 2 * j));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        multiply(Element{}, o[m] + 8 * j, &p16[m][4 * step], v[0], v[1]);
        if (2 * j + 1 < TileV::kUsedChunks) {
          multiply(Element{}, o[m] + 8 * j + 4, &p16[m][4 * step], v[2], v[3]);
        }
      }
    }
  }
}

}  // namespace attn::device
