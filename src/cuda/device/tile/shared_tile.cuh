// Tiles of 16-bit elements in shared memory, row after row, without padding between rows. Chunks of
// 16 bytes are permuted within a row so that a column of chunks of 8 neighbouring rows lies in
// different banks: ldmatrix reads it in one go.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "ptx/cp_async.cuh"
#include "tile/accumulator.cuh"

namespace attn::device {

// kColumns: a multiple of 8. Rows are rounded up to kRound columns: 16, the k of one product, or a
// multiple of 16.
template <int kColumns, int kRound = 16>
struct SharedTile {
  static constexpr int kChunks = divide_up<kRound>(kColumns) * (kRound / 8);
  static constexpr int kUsedChunks = kColumns / 8;
  static constexpr int kRowBytes = 16 * kChunks;
  // Chunks are exchanged within aligned groups of this many. Rows begin kChunks chunks apart, so
  // that 8 / kSwizzle neighbouring rows lie in different banks already.
  static constexpr int kSwizzle = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;

  static constexpr ATTN_DEVICE int permutation(int row) {
    return static_cast<int>(static_cast<unsigned>(row) / (8 / kSwizzle) % kSwizzle);
  }
  // Bytes from the start of the tile.
  static constexpr ATTN_DEVICE int offset(int row, int chunk) {
    return row * kRowBytes + 16 * (chunk ^ permutation(row));
  }
  // Bytes from a chunk to the one that is `chunks` further on, a multiple of kSwizzle.
  static constexpr ATTN_DEVICE int chunk_bytes(int chunks) { return 16 * chunks; }

  // The address at which a lane of ldmatrix reads: its row of the first matrices, and which of two
  // chunks.
  static ATTN_DEVICE unsigned lane(unsigned tile, int row, int chunk) {
    return tile + static_cast<unsigned>(offset(row, chunk));
  }
  // The address at which the same lane reads `rows` (a multiple of 8) and `chunks` (even) further
  // on. The tile begins at a multiple of 128 bytes.
  static ATTN_DEVICE unsigned further(unsigned lane, int rows, int chunks) {
    return (lane ^ static_cast<unsigned>(16 * (chunks % kSwizzle))) +
           static_cast<unsigned>(rows * kRowBytes + 16 * (chunks / kSwizzle * kSwizzle));
  }
};

// How kThreads threads, from kFirst on, share the chunks of a tile: neighbours take neighbouring
// chunks, and a thread keeps to one row in kDown.
template <class Tile, int kThreads, int kFirst = 0>
struct TileShare {
  static constexpr int kAcross = Tile::kSwizzle;
  static constexpr int kDown = kThreads / kAcross;
  static_assert(kDown % 8 == 0, "rows of a thread are permuted alike");

  static ATTN_DEVICE int column() { return static_cast<int>(threadIdx.x % kAcross); }
  static ATTN_DEVICE int row() { return static_cast<int>((threadIdx.x - kFirst) / kAcross); }
  // Asks for this thread's chunks of row `rows` + row(); `from`: the row's chunk column().
  static ATTN_DEVICE void copy(unsigned tile, int rows, const char* from, bool exists) {
    const unsigned to = tile + static_cast<unsigned>(Tile::offset(row(), column())) +
                        static_cast<unsigned>(rows * Tile::kRowBytes);
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; chunk += kAcross) {
      const bool inside =
          Tile::kUsedChunks == Tile::kChunks || chunk + column() < Tile::kUsedChunks;
      copy_async(to + static_cast<unsigned>(Tile::chunk_bytes(chunk)), from + 16 * chunk,
                 exists && inside);
    }
  }
};

struct SourceRow {
  const char* data;  // 16-byte aligned
  bool exists;       // false: zeros
};

// Asks for the kRows rows of a tile; source(row) gives the SourceRow.
template <class Tile, int kRows, int kThreads, int kFirst = 0, class Source>
ATTN_DEVICE void load_tile(unsigned tile, Source source) {
  static_assert(kFirst % Tile::kSwizzle == 0);
  using Share = TileShare<Tile, kThreads, kFirst>;
#pragma unroll
  for (int rows = 0; rows < kRows; rows += Share::kDown) {
    if (kRows % Share::kDown != 0 && rows + Share::row() >= kRows) break;
    const SourceRow from = source(rows + Share::row());
    Share::copy(tile, rows, from.data + 16 * Share::column(), from.exists);
  }
}

// Does the same where source(row) reads memory: a thread looks all its rows up before it asks for
// the first, as no read is moved before a copy.
template <class Tile, int kRows, int kThreads, int kFirst = 0, class Source>
ATTN_DEVICE void load_gathered_tile(unsigned tile, Source source) {
  static_assert(kFirst % Tile::kSwizzle == 0);
  using Share = TileShare<Tile, kThreads, kFirst>;
  SourceRow from[divide_up<Share::kDown>(kRows)];
#pragma unroll
  for (int rows = 0; rows < kRows; rows += Share::kDown) {
    if (kRows % Share::kDown != 0 && rows + Share::row() >= kRows) break;
    from[rows / Share::kDown] = source(rows + Share::row());
  }
#pragma unroll
  for (int rows = 0; rows < kRows; rows += Share::kDown) {
    if (kRows % Share::kDown != 0 && rows + Share::row() >= kRows) break;
    const SourceRow& row = from[rows / Share::kDown];
    Share::copy(tile, rows, row.data + 16 * Share::column(), row.exists);
  }
}

// load_tile for rows that are `stride` bytes apart, of which the first `count` exist.
template <class Tile, int kRows, int kThreads>
ATTN_DEVICE void load_tile(unsigned tile, const char* first, long long stride, int count) {
  using Share = TileShare<Tile, kThreads>;
  const char* from = first + Share::row() * stride + 16 * Share::column();
  count -= Share::row();
#pragma unroll
  for (int rows = 0; rows < kRows; rows += Share::kDown) {
    if (kRows % Share::kDown != 0 && rows + Share::row() >= kRows) break;
    Share::copy(tile, rows, from, rows < count);
    from += Share::kDown * stride;
  }
}

// Asks one warp for the kRows rows of a tile of its own; source(row) gives the SourceRow.
template <class Tile, int kRows, class Source>
ATTN_DEVICE void load_warp_tile(unsigned tile, Source source) {
  constexpr int kAcross = Tile::kSwizzle, kDown = 32 / kAcross;
  static_assert(kRows % kDown == 0);
  const int lane = static_cast<int>(threadIdx.x % 32), column = lane % kAcross;
#pragma unroll
  for (int rows = 0; rows < kRows; rows += kDown) {
    const int row = rows + lane / kAcross;
    const SourceRow from = source(row);
    const unsigned to = tile + static_cast<unsigned>(Tile::offset(row, column));
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; chunk += kAcross) {
      const bool inside = Tile::kUsedChunks == Tile::kChunks || chunk + column < Tile::kUsedChunks;
      copy_async(to + static_cast<unsigned>(16 * chunk), from.data + 16 * (chunk + column),
                 from.exists && inside);
    }
  }
}

// Stores the kRows rows of a tile at offset `at` of shared memory as load_tile asks for them:
// `present` rows exist, of which those from `used` on become zeros.
template <class Tile, int kRows, int kThreads>
ATTN_DEVICE void store_tile(int at, char* first, long long stride, int present, int used) {
  extern __shared__ __align__(128) char memory[];
  using Share = TileShare<Tile, kThreads>;
#pragma unroll
  for (int rows = 0; rows < kRows; rows += Share::kDown) {
    const int row = rows + Share::row();
    if (row >= kRows || row >= present) break;
    const char* from =
        memory + at + Tile::offset(Share::row(), Share::column()) + rows * Tile::kRowBytes;
    char* to = first + row * stride + 16 * Share::column();
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; chunk += Share::kAcross) {
      if (chunk + Share::column() >= Tile::kUsedChunks) break;
      const Words4 x = *reinterpret_cast<const Words4*>(from + 16 * chunk);
      *reinterpret_cast<Words4*>(to + 16 * chunk) = row < used ? x : Words4{0, 0, 0, 0};
    }
  }
}

}  // namespace attn::device
