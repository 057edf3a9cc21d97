// The warps of the Hopper forward kernel that transpose V of 8-bit floats in shared memory, as
// their products read both operands along keys, where so few tiles of queries read V that a kernel
// ahead (kernels/transpose_values.cuh) would cost more.
//
// A tile is transposed where it arrived. Seen as a square of 128 x 128 bytes, blocks of 16 keys and
// 16 columns change places with those across the diagonal, so that both are loaded before either is
// stored. ldmatrix gives a thread a word with two columns of two keys. From two such words, 8 keys
// apart, it makes two words that each hold four keys of one column, in an accumulator's order
// (schedule/transposed_values.cuh).
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90/follower.cuh"
#include "kernels/forward_sm90/tiles.cuh"
#include "ptx/halves.cuh"
#include "ptx/mma.cuh"

namespace attn::device {

// Blocks of 16 keys x 16 columns of a square in pairs, whose blocks are loaded before either is
// stored: those that change places, and two that change with none.
struct SquarePairs {
  static constexpr int kMost = 36, kNone = 255;
  int count = 0;
  unsigned char keys[kMost][2] = {}, columns[kMost][2] = {};

  // Those of warp `own` of `warps` of a square of so many blocks of keys and of columns.
  ATTN_DEVICE constexpr SquarePairs(int blocks_k, int blocks_c, int warps, int own) {
    int single_k = kNone, single_c = 0, number = 0;
    const auto add = [&](int k0, int c0, int k1, int c1) {
      if (number++ % warps != own) return;
      keys[count][0] = static_cast<unsigned char>(k0);
      columns[count][0] = static_cast<unsigned char>(c0);
      keys[count][1] = static_cast<unsigned char>(k1);
      columns[count++][1] = static_cast<unsigned char>(c1);
    };
    for (int k = 0; k < blocks_k; ++k) {
      for (int c = 0; c < blocks_c; ++c) {
        if (k != c && c < blocks_k && k < blocks_c) {
          if (k < c) add(k, c, c, k);
        } else if (single_k == kNone) {
          single_k = k;
          single_c = c;
        } else {
          add(single_k, single_c, k, c);
          single_k = kNone;
        }
      }
    }
    if (single_k != kNone) add(single_k, single_c, kNone, 0);
  }
};

// Of this thread: where its rows of a block are, from and to, in a square that begins at 0, and
// which bytes of two words go to the matrices stored.
struct SquareLane {
  unsigned from, to, first, second;

  // A matrix that is stored has eight columns in 16 bytes each: 0, 2, 4, 6, 9, 11, 13, 15 of 16, or
  // the others, which lie in different banks as columns 0, 2, ..., 14 do not.
  ATTN_DEVICE SquareLane() {
    const unsigned lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8 % 2;
    const unsigned column = 2 * row + ((row / 4) ^ matrix);
    from = 128 * (lane % 16) + 16 * row;
    to = 128 * column + 16 * (column % 8);
    const bool low = lane < 16;
    first = low ? 0x6420 : 0x7531;
    second = low ? 0x7531 : 0x6420;
  }
  ATTN_DEVICE void load(unsigned (&w)[2], unsigned square, int keys, int columns) const {
    load_matrices_transposed(w, ((square + from) ^ static_cast<unsigned>(16 * columns)) +
                                    static_cast<unsigned>(2048 * keys));
  }
  ATTN_DEVICE void store(const unsigned (&w)[2], unsigned square, int keys, int columns) const {
    store_matrices(
        ((square + to) ^ static_cast<unsigned>(16 * keys)) + static_cast<unsigned>(2048 * columns),
        {take_bytes(w[0], w[1], first), take_bytes(w[0], w[1], second)});
  }
};

// kWarp: of C::kTransposers that share the work; the first also follows tiles.
template <class C, class Expressions, int kWarp>
struct ForwardSm90Transposer {
  using Tiles = ForwardSm90Tiles<C, Expressions>;
  using Layout = typename Tiles::Layout;
  using Work = typename Tiles::Work;
  using AllBlocks = typename Tiles::AllBlocks;

  const Tiles& tiles;

  // Transposes this warp's share of a square of kColumns columns in place. kAhead pairs are loaded
  // ahead of the one that is stored.
  template <int kColumns>
  static ATTN_DEVICE void transpose_square(const SquareLane& lane, unsigned square) {
    constexpr SquarePairs kPairs(C::kBlockN / 16, kColumns / 16, C::kTransposers, kWarp);
    constexpr int kAhead = C::kProducerRegisters < 32 ? 2 : 3;
    unsigned w[kAhead][2][2];
#pragma unroll
    for (int i = 0; i < kPairs.count + kAhead; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int n = i - kAhead;
        if (n >= 0 && kPairs.keys[n][j] != SquarePairs::kNone) {
          lane.store(w[n % kAhead][j], square, kPairs.keys[n][j], kPairs.columns[n][j]);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (i < kPairs.count && kPairs.keys[i][j] != SquarePairs::kNone) {
          lane.load(w[i % kAhead][j], square, kPairs.keys[i][j], kPairs.columns[i][j]);
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
        const int lane = static_cast<int>(threadIdx.x % 32);
        for (int i = 8 * used + 32 * kWarp + lane; i < 8 * C::kBlockN; i += 32 * C::kTransposers) {
          store_shared(tile + static_cast<unsigned>(square * Layout::kSquare + 16 * i),
                       {0, 0, 0, 0});
        }
      }
      meet();
    }
  }
  // The rows behind those of V, whose product with P is the sum of P.
  static ATTN_DEVICE void store_ones(unsigned tile) {
    if constexpr (Layout::kOnesInV) {
      constexpr int kOne = Scalar<typename C::OperandV>::kOnes;
      if constexpr (C::kHeadDimV % 128 != 0) meet();  // keys lie there, too
      if constexpr (kWarp != 0) return;
      const int lane = static_cast<int>(threadIdx.x % 32);
      const unsigned at = tile + static_cast<unsigned>(128 * C::kHeadDimV + 16 * lane);
      const int w = lane < 8 ? kOne : 0;  // the first row
      store_shared(at, {w, w, w, w});
      store_shared(at + 512, {0, 0, 0, 0});
    }
  }

  // Waits until the other warps are here too.
  static ATTN_DEVICE void meet() {
    if constexpr (C::kTransposers == 1) {
      __syncwarp();
    } else {
      barrier_sync(Tiles::kWarpgroupBarrier + C::kConsumers, 32 * C::kTransposers);
    }
  }
  // Transposes this warp's share of use n of the ring of V, once it has arrived.
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

  // Transposes V of all tiles. Where tiles are followed (follower.cuh), the first warp follows them
  // too, one tile behind: the tile before is stored when the products of a tile have begun.
  ATTN_DEVICE void transpose_tiles() const {
    constexpr bool kFollows = Tiles::kFollowed && kWarp == 0;
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
      if constexpr (kFollows) {
        // Nothing waits for V of a tile without blocks, behind which others may not come before it
        // was looked at.
        const unsigned end = exists && !has_blocks ? n + 1 : n;
        for (; followed != end; ++followed) follower.follow(followed);
      }
      if (!exists) return;
      if constexpr (!kFollows) ring.release(n);
    }
  }
};

}  // namespace attn::device
