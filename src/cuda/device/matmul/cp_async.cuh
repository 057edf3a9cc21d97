// Rung 7, cp_async: in mma_sync numbers pass through registers on their way to shared memory, and
// nothing is multiplied meanwhile. cp.async copies 16 bytes past the registers, and a ring of four
// tiles keeps three on their way while one is multiplied. Expected: 2 to 3 times. Measured: 5
// times (145 TFLOP/s), with what the rung before had lost. What is left is how operands come from
// shared memory: 24 loads a warp for 16 products.
//
// Tile: 128 x 128 x 32, 256 threads, four stages. Takes what vector_loads takes.
#pragma once

#include "device.cuh"
#include "matmul/warp_tiles.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

// A tile of an operand in shared memory as it lies in memory: [lane][step] where neighbours along k
// lie together, else [step][lane]. Lanes are rows of A, columns of B.
template <bool kStepsTogether>
struct RingTile {
  static constexpr int kColumns = kStepsTogether ? WarpTiles::kDepth : WarpTiles::kSide;
  static constexpr int kRows = kStepsTogether ? WarpTiles::kSide : WarpTiles::kDepth;
  using Tile = SharedTile<kColumns>;
  static constexpr int kBytes = kRows * Tile::kRowBytes;

  // first: of the tile; stride: of its rows, in bytes; rows, columns: that the matrix still has,
  // columns in multiples of 8.
  static ATTN_DEVICE void load(unsigned tile, const char* first, long long stride, int rows,
                               int columns) {
    // A count that is no thread's own: the compiler would make branches of another.
    constexpr int kEach = kRows * Tile::kChunks / WarpTiles::kThreads;
    static_assert(kEach * WarpTiles::kThreads == kRows * Tile::kChunks, "threads share evenly");
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * WarpTiles::kThreads + static_cast<int>(threadIdx.x);
      const int row = at / Tile::kChunks, chunk = at % Tile::kChunks;
      const bool exists = row < rows && 8 * chunk < columns;
      copy_async(tile + static_cast<unsigned>(Tile::offset(row, chunk)),
                 exists ? first + row * stride + 16 * chunk : first, exists);
    }
  }
  // Address of an element.
  static ATTN_DEVICE unsigned address(unsigned tile, int lane, int step) {
    const int row = kStepsTogether ? lane : step, column = kStepsTogether ? step : lane;
    return tile + static_cast<unsigned>(Tile::offset(row, column / 8) + column % 8 * 2);
  }
  // Neighbours along k.
  static ATTN_DEVICE unsigned pair(unsigned tile, int lane, int step) {
    if constexpr (kStepsTogether) {
      return static_cast<unsigned>(load_shared_word(address(tile, lane, step)));
    } else {
      const unsigned even = address(tile, lane, step), odd = address(tile, lane, step + 1);
      return load_shared_byte(even) | load_shared_byte(even + 1) << 8 |
             load_shared_byte(odd) << 16 | load_shared_byte(odd + 1) << 24;
    }
  }
};

// The ring of tiles of A and B, and the loop over k. load_fragments(a, b, step) gives the operands
// of the 16 steps from `step` on of the tiles at these addresses.
template <class C>
struct MmaRing : WarpTiles {
  static constexpr int kStages = 4;
  using TileA = RingTile<C::kStepsTogetherA>;
  using TileB = RingTile<C::kStepsTogetherB>;
  static constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;
  static constexpr int kBytes = kStages * kStageBytes;

  static ATTN_DEVICE void load(const MatmulParams& p, const MatmulTile& t, int step,
                               unsigned stage) {
    if (step < p.k) {
      const long long a = t.batch * p.a_batch + t.row * p.a_row + step * p.a_step;
      const long long b = t.batch * p.b_batch + step * p.b_step + t.column * p.b_column;
      const int steps = p.k - step, rows = p.m - t.row, columns = p.n - t.column;
      TileA::load(stage, static_cast<const char*>(p.a) + 2 * a,
                  2 * (C::kStepsTogetherA ? p.a_row : p.a_step), C::kStepsTogetherA ? rows : steps,
                  C::kStepsTogetherA ? steps : rows);
      TileB::load(stage + TileA::kBytes, static_cast<const char*>(p.b) + 2 * b,
                  2 * (C::kStepsTogetherB ? p.b_column : p.b_step),
                  C::kStepsTogetherB ? columns : steps, C::kStepsTogetherB ? steps : columns);
    }
    copy_async_commit();  // an empty group keeps the count
  }

  template <class Multiply>
  static ATTN_DEVICE void for_each_tile(const MatmulParams& p, const MatmulTile& t, unsigned shared,
                                        Multiply multiply_tile) {
    int ahead = next_step<C>(p, t, 0);
    const auto load_next = [&](int to) {
      load(p, t, ahead, shared + static_cast<unsigned>(to * kStageBytes));
      ahead = next_step<C>(p, t, ahead + kDepth);
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) load_next(i);
    int stage = 0;
    for (int step = next_step<C>(p, t, 0); step < p.k; step = next_step<C>(p, t, step + kDepth)) {
      copy_async_wait<kStages - 2>();
      __syncthreads();
      load_next(stage == 0 ? kStages - 1 : stage - 1);
      const unsigned a = shared + stage * kStageBytes;
      multiply_tile(a, a + TileA::kBytes);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
  }
};

template <class C>
ATTN_DEVICE void matmul_cp_async(const MatmulParams& p) {
  using Ring = MmaRing<C>;
  extern __shared__ __align__(1024) char memory[];
  const MatmulTile t = matmul_tile(p, static_cast<int>(blockIdx.x), Ring::kSide, Ring::kSide);
  if (!has_tile<C>(p, t)) return;
  const int in_quad = Ring::lane() % 4 * 2, quad = Ring::lane() / 4;
  float sum[4][4][4] = {};
  Ring::for_each_tile(p, t, shared_address(memory), [&](unsigned a, unsigned b) {
#pragma unroll
    for (int l = 0; l < Ring::kDepth; l += 16) {
      Fragments f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          f.a[i][r] = Ring::TileA::pair(a, Ring::row() + 16 * i + quad + r % 2 * 8,
                                        l + in_quad + r / 2 * 8);
        }
        f.b[i][0] = Ring::TileB::pair(b, Ring::column() + 8 * i + quad, l + in_quad);
        f.b[i][1] = Ring::TileB::pair(b, Ring::column() + 8 * i + quad, l + in_quad + 8);
      }
      multiply_fragments<typename C::Element>(f, sum);
    }
  });
  store_warp_tile<C>(p, t, sum);
}

}  // namespace attn::device
