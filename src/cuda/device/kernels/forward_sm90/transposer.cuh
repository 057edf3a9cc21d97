// The warp of the Hopper forward kernel that transposes V of 8-bit floats in shared memory, as
// their products read both operands along keys: tiles of V that few tiles of queries read are not
// worth a kernel ahead (kernels/transpose_values.cuh).
//
// A tile is transposed where it arrived. Seen as a square of 128 x 128 bytes, blocks of 32 keys and
// 32 columns change places with those across the diagonal, so that a pair is loaded, and then
// stored. ldmatrix gives a thread two columns of two keys in a word; of two such words, 8 keys
// apart, one holds four keys of each column, in the order of an accumulator
// (schedule/transposed_values.cuh).
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90/follower.cuh"
#include "kernels/forward_sm90/tiles.cuh"
#include "ptx/halves.cuh"
#include "ptx/mma.cuh"

namespace attn::device {

// Of this thread: 32 keys x 16 columns of a square are one ldmatrix, or one stmatrix.
struct SquareLane {
  unsigned from, to;       // its rows in a square that begins at 0
  unsigned first, second;  // which bytes of two words go to the matrices stored

  // A matrix that is stored has eight columns in 16 bytes each: 0, 2, 4, 6, 9, 11, 13, 15 of 16, or
  // the others, which lie in different banks as columns 0, 2, ..., 14 do not.
  ATTN_DEVICE SquareLane() {
    const unsigned lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
    const unsigned column = 2 * row + ((row / 4) ^ (matrix % 2));
    from = 128 * lane + 16 * row;
    to = 128 * column + 16 * (column % 8 ^ matrix / 2);
    const bool low = lane < 16;
    first = low ? 0x6420 : 0x7531;
    second = low ? 0x7531 : 0x6420;
  }
  // Four matrices of 16 columns, from column 16 `chunk` on, of 32 keys.
  ATTN_DEVICE void load(unsigned (&w)[4], unsigned square, int keys, int chunk) const {
    load_matrices_transposed(w, ((square + from) ^ static_cast<unsigned>(16 * chunk)) +
                                    static_cast<unsigned>(4096 * keys));
  }
  ATTN_DEVICE void store(const unsigned (&w)[4], unsigned square, int keys, int chunk) const {
    const unsigned columns[4] = {take_bytes(w[0], w[1], first), take_bytes(w[0], w[1], second),
                                 take_bytes(w[2], w[3], first), take_bytes(w[2], w[3], second)};
    store_matrices(((square + to) ^ static_cast<unsigned>(32 * keys)) +
                       static_cast<unsigned>(2048 * chunk),
                   columns);
  }
};

template <class C, class Expressions>
struct ForwardSm90Transposer {
  using Tiles = ForwardSm90Tiles<C, Expressions>;
  using Layout = typename Tiles::Layout;
  using Work = typename Tiles::Work;
  using AllBlocks = typename Tiles::AllBlocks;

  const Tiles& tiles;

  // Transposes a square of kColumns columns in place. Of the blocks i, j and j, i, parts 0 to 3 are
  // 32 keys of 16 columns each; those outside of the tile are neither loaded nor stored.
  template <int kColumns>
  static ATTN_DEVICE void transpose_square(const SquareLane& lane, unsigned square) {
    constexpr int kKeys = C::kBlockN / 32, kChunks = kColumns / 16;
    constexpr int kAll = kKeys > (kChunks + 1) / 2 ? kKeys : (kChunks + 1) / 2;
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
#pragma unroll
      for (int j = i; j < kAll; ++j) {
        const auto keys = [&](int part) { return part < 2 ? i : j; };
        const auto chunk = [&](int part) { return 2 * (part < 2 ? j : i) + part % 2; };
        const auto exists = [&](int part) {
          return keys(part) < kKeys && chunk(part) < kChunks && (part < 2 || i != j);
        };
        unsigned w[4][4];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          if (exists(part)) lane.load(w[part], square, keys(part), chunk(part));
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          if (exists(part)) lane.store(w[part], square, keys(part), chunk(part));
        }
      }
    }
  }

  // Rows of V from the used-th on are past the length and someone else's: they must not meet P = 0
  // as NaN.
  static ATTN_DEVICE void clear_tail(unsigned tile, int used) {
    if constexpr (C::kPackedK || C::kUsedK || C::kPageRows > 0) {
      if (used >= C::kBlockN) return;
      for (int square = 0; square < Layout::kSquares; ++square) {
        for (int i = 8 * used + static_cast<int>(threadIdx.x % 32); i < 8 * C::kBlockN; i += 32) {
          store_shared(tile + static_cast<unsigned>(square * Layout::kSquare + 16 * i),
                       {0, 0, 0, 0});
        }
      }
      __syncwarp();
    }
  }
  // The rows behind those of V, whose product with P is the sum of P.
  static ATTN_DEVICE void store_ones(unsigned tile) {
    if constexpr (Layout::kOnesInV) {
      constexpr int kOne = Scalar<typename C::OperandV>::kOnes;
      __syncwarp();
      const int lane = static_cast<int>(threadIdx.x % 32);
      const unsigned at = tile + static_cast<unsigned>(128 * C::kHeadDimV + 16 * lane);
      const int w = lane < 8 ? kOne : 0;  // the first row
      store_shared(at, {w, w, w, w});
      store_shared(at + 512, {0, 0, 0, 0});
    }
  }

  // Transposes use n of the ring of V, once it has arrived.
  ATTN_DEVICE void transpose(const SquareLane& lane, unsigned n, int used) const {
    const auto loaded = tiles.loaded_ring();
    const unsigned tile =
        tiles.shared + static_cast<unsigned>(Layout::kVAt + loaded.place(n) * Layout::kV);
    loaded.wait(n);
    clear_tail(tile, used);
#pragma unroll 1
    for (int square = 0; square + 1 < Layout::kSquares; ++square) {
      transpose_square<128>(lane, tile + static_cast<unsigned>(square * Layout::kSquare));
    }
    constexpr int kWhole = Layout::kSquares - 1;
    transpose_square<C::kHeadDimV - 128 * kWhole>(lane, tile + kWhole * Layout::kSquare);
    store_ones(tile);
    fence_proxy_async();
    __syncwarp();
    if (elect_one()) mbarrier_arrive(tiles.v_ring().full(n));
  }

  // Transposes V of all tiles. Where tiles are followed (follower.cuh) this warp does it too, a tile
  // behind: the one before is stored when the products of a tile have begun.
  ATTN_DEVICE void transpose_tiles() const {
    const ForwardSm90Follower<C, Expressions> follower{tiles};
    const auto ring = tiles.tile_ring();
    const SquareLane lane;
    unsigned transposed = 0, followed = 0;
    for (unsigned n = 0;; ++n) {
      const int slot = ring.place(n);
      ring.wait(n);
      const Work w = tiles.get(slot);
      const bool exists = Tiles::is_tile(w);
      bool has_blocks = false;
      if (exists) {
        auto list = tiles.template first_blocks<AllBlocks>(slot, 0, w);
        has_blocks = list.more();
#pragma unroll 1
        for (; list.more(); list.advance(tiles, slot), ++transposed) {
          transpose(lane, transposed, Tiles::used_keys(w, list.block()));
        }
      }
      __syncwarp();
      if constexpr (Tiles::kFollowed) {
        // Nothing waits for V of a tile without blocks, behind which others may not come before it
        // was looked at.
        const unsigned end = exists && !has_blocks ? n + 1 : n;
        for (; followed != end; ++followed) follower.follow(followed);
      }
      if (!exists) return;
      if constexpr (!Tiles::kFollowed) ring.release(n);
    }
  }
};

}  // namespace attn::device
