// Tiles of 16-bit elements in shared memory as warpgroup products read them: panels of 64 columns,
// one behind the other, whose chunks of 16 bytes are permuted as swizzle.cuh says.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"

namespace attn::device {

// For load_tile (shared_tile.cuh). kColumns: a multiple of 8, rounded up to kRound, a multiple of
// 64; kRows: a multiple of 8. The tile begins at a multiple of 1024 bytes.
template <int kRows, int kColumns, int kRound = 64>
struct PanelTile {
  static constexpr int kChunks = divide_up<kRound>(kColumns) * (kRound / 8);
  static constexpr int kUsedChunks = kColumns / 8;
  static constexpr int kSwizzle = 8, kRowBytes = 128, kPanelBytes = 128 * kRows;
  static constexpr int kBytes = kChunks / 8 * kPanelBytes;

  // Bytes from the start of the tile.
  static constexpr ATTN_DEVICE int offset(int row, int chunk) {
    return chunk / 8 * kPanelBytes + row * kRowBytes + 16 * ((chunk ^ row) % 8);
  }
  // Bytes from a chunk to the one that is `chunks` further on, a multiple of 8.
  static constexpr ATTN_DEVICE int chunk_bytes(int chunks) { return chunks / 8 * kPanelBytes; }
};

}  // namespace attn::device
