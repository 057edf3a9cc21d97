// The verbs of products of few rows on AMX, whose unit multiplies faster than B can be read: up to
// kRowsOfTiles rows of A, packed as tiles, meet each tile of B once. The tiles of a B whose steps
// are neighbours lie in memory as AMX takes a left operand, 16 columns of 32 steps, so they are
// loaded from there and what is summed is C^T = B^T A^T. Where columns are neighbours, pairs of
// steps go through a buffer in L1 first, and C = A B.
#pragma once

#include <algorithm>
#include <utility>

#include "cpu/kernels/matmul_amx.hpp"
#include "cpu/kernels/matmul_few_rows.hpp"

namespace attn::cpu::ATTN_ISA {

inline constexpr int kRowsOfTiles = 4 * kTileRows;
// Blocks of 32 steps of which a buffer holds pairs of 32 columns of B: sums are loaded and stored
// once for them. Of one tile of rows, whose products take less time than reading B, one block is
// taken: more rows of B at a time are more streams than the caches follow (docs/log/cpu.md).
inline constexpr int kBufferBlocks = 2;
// Bytes of a column of B that are asked for ahead.
inline constexpr int kColumnBytesAhead = 512;

struct TileAt {
  const void* at;
  std::ptrdiff_t stride;  // bytes from one row of the tile to the next
};

// body.operator()<0>(), ... <kCount - 1>().
template <int kCount, class Body>
ATTN_INLINE void unrolled(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (body.template operator()<kIndex>(), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

// Sum i * kRight + j, of tiles 0 to 3, += left(i) right(j). The side with fewer tiles stays in
// tiles 4 and 5, or 4 alone; those of the other pass by in the rest.
template <int kLeft, int kRight, class Left, class Right>
ATTN_INLINE void add_tile_products(const Left& left, const Right& right) {
  static_assert(kLeft * kRight <= 4);
  constexpr bool kRightStays = kRight <= kLeft;
  constexpr int kStay = std::min(kLeft, kRight), kPass = std::max(kLeft, kRight);
  unrolled<kStay>([&]<int kIndex>() __attribute__((always_inline)) {
    const TileAt tile = kRightStays ? right(kIndex) : left(kIndex);
    load_tile<4 + kIndex>(tile.at, tile.stride);
  });
  unrolled<kPass>([&]<int kOuter>() __attribute__((always_inline)) {
    constexpr int kTile = 4 + kStay + kOuter % (4 - kStay);
    const TileAt tile = kRightStays ? left(kOuter) : right(kOuter);
    load_tile<kTile>(tile.at, tile.stride);
    unrolled<kStay>([&]<int kInner>() __attribute__((always_inline)) {
      if constexpr (kRightStays) {
        add_product<kOuter * kRight + kInner, kTile, 4 + kInner>();
      } else {
        add_product<kInner * kRight + kOuter, 4 + kInner, kTile>();
      }
    });
  });
}

// The packed tiles of A: rows [16 tile, 16 tile + 16) and steps [32 block, 32 block + 32).
struct TilesOfA {
  const std::uint32_t* packed;
  int blocks;
  TileAt at(int tile, int block) const {
    return {packed + ((tile / 2 * blocks + block) * 2 + tile % 2) * std::ptrdiff_t{kTileWords}, 64};
  }
};

// A's tiles as the right operand, pairs of steps first, where the steps of B are neighbours.
static void pack_few_rows_amx(const OperandBlock& a, const OperandBlock& b, int, void* packed) {
  if (b.lane_stride == 1) return pack_tiles<false>(a, packed);
  pack_tiles<true>(a, packed);
}

// kTiles tiles of columns from `lane` on, of which `columns` are there, by kTilesOfA tiles of rows.
template <int kTiles, int kTilesOfA>
static void multiply_steps_amx(const TilesOfA& a, int rows, const OperandBlock& b, int lane,
                               int columns, bool add, float* c, int ld) {
  const std::ptrdiff_t stride = 2 * b.lane_stride;
  const std::byte* const first = b.at + lane * stride;
  alignas(64) std::uint32_t part[kTiles][kTileWords];
  zero_sums();
  for (int block = 0; block < a.blocks; ++block) {
    const std::byte* const at = first + std::ptrdiff_t{block} * 64;
    const int steps =
        b.depth - block * kTileDepth < kTileDepth ? b.depth - block * kTileDepth : kTileDepth;
    const auto of_a = [&](int tile) __attribute__((always_inline)) { return a.at(tile, block); };
    if (steps == kTileDepth && columns == kTiles * kTileRows) {
      // Further down these columns, and then from the top of the next ones.
      std::ptrdiff_t ahead = kColumnBytesAhead;
      const bool next = block * 64 + ahead >= 2 * b.depth;
      if (next) ahead += kTiles * kTileRows * stride - 2 * std::ptrdiff_t{b.depth};
      if (!next || lane + 2 * kTiles * kTileRows <= b.lanes) {
        for (int column = 0; column < kTiles * kTileRows; ++column) {
          __builtin_prefetch(at + column * stride + ahead, 0, 2);
        }
      }
      add_tile_products<kTiles, kTilesOfA>(
          [&](int tile) __attribute__((always_inline)) {
            return TileAt{at + tile * kTileRows * stride, stride};
          },
          of_a);
    } else {
      __builtin_memset(part, 0, sizeof(part));
      for (int column = 0; column < columns; ++column) {
        __builtin_memcpy(part[0] + column * kPairs, at + column * stride,
                         2 * static_cast<std::size_t>(steps));
      }
      add_tile_products<kTiles, kTilesOfA>(
          [&](int tile) __attribute__((always_inline)) {
            return TileAt{part[tile], 64};
          },
          of_a);
    }
  }
  alignas(64) float sums[4][kTileRows * kLanes];  // [column][row]
  store_tile<0>(sums[0], 64);
  store_tile<1>(sums[1], 64);
  store_tile<2>(sums[2], 64);
  store_tile<3>(sums[3], 64);
  for (int i = 0; i < kTiles && i * kTileRows < columns; ++i) {
    for (int j = 0; j < kTilesOfA; ++j) {
      F x[kLanes];
      for (int column = 0; column < kLanes; ++column) {
        x[column] = load(sums[i * kTilesOfA + j] + column * kLanes);
      }
      transpose(x);
      float* out = c + std::ptrdiff_t{j} * kTileRows * ld + lane + i * kTileRows;
      for (int row = 0; row < kTileRows && j * kTileRows + row < rows; ++row, out += ld) {
        store(out, add ? load(out) + x[row] : x[row]);
      }
    }
  }
}

template <int kTilesOfA>
static void multiply_steps_of(const TilesOfA& a, int rows, const OperandBlock& b, bool add,
                              float* c, int ld) {
  constexpr int kTiles = 4 / kTilesOfA, kColumns = kTiles * kTileRows;
  for (int lane = 0; lane < b.lanes; lane += kColumns) {
    const int columns = b.lanes - lane < kColumns ? b.lanes - lane : kColumns;
    multiply_steps_amx<kTiles, kTilesOfA>(a, rows, b, lane, columns, add, c, ld);
  }
}

// Pairs of steps from `step` on of 16 columns from `lane` on: tiles of a right operand, zero past
// the end of the block.
static void pair_steps(const OperandBlock& b, int step, int blocks, int lane, std::uint32_t* out) {
  const std::ptrdiff_t row_bytes = 2 * b.step_stride;
  const std::byte* row = b.at + step * row_bytes;
  const bool whole = b.lanes - lane >= kLanes;
  for (int pair = 0; pair < blocks * kPairs; ++pair, row += 2 * row_bytes, out += kLanes) {
    const int left = b.depth - step - 2 * pair;
    if (whole && left >= 2) {
      const std::byte* const even = row + 2 * lane;
      store(out, widen(load_as<H>(even)) | widen(load_as<H>(even + row_bytes)) << 16);
    } else {
      store(out, load_pairs(left > 0 ? row : nullptr, left > 1 ? row + row_bytes : nullptr, lane,
                            b.lanes));
    }
  }
}

// Sums of kTilesOfA tiles of rows by kTiles tiles of columns, for `blocks` of 32 steps.
template <int kTilesOfA, int kTiles>
ATTN_INLINE void multiply_pairs(const TilesOfA& a, int tile, int block, int blocks,
                                const std::uint32_t (*pairs)[kBufferBlocks * kTileWords], bool add,
                                float* c, int ld) {
  const auto sums = [&](int i) __attribute__((always_inline)) {
    return c + i / kTiles * kTileRows * std::ptrdiff_t{ld} + i % kTiles * kTileRows;
  };
  unrolled<kTilesOfA * kTiles>([&]<int kIndex>() __attribute__((always_inline)) {
    if (add) {
      load_tile<kIndex>(sums(kIndex), 4 * std::ptrdiff_t{ld});
    } else {
      zero_tile<kIndex>();
    }
  });
  for (int i = 0; i < blocks; ++i) {
    add_tile_products<kTilesOfA, kTiles>(
        [&](int of_a) __attribute__((always_inline)) { return a.at(tile + of_a, block + i); },
        [&](int of_b) __attribute__((always_inline)) {
          return TileAt{pairs[of_b] + i * kTileWords, 64};
        });
  }
  unrolled<kTilesOfA * kTiles>([&]<int kIndex>() __attribute__((always_inline)) {
    store_tile<kIndex>(sums(kIndex), 4 * std::ptrdiff_t{ld});
  });
}

// Columns of B are neighbours in memory.
static void multiply_columns_amx(const TilesOfA& a, int tiles, const OperandBlock& b, bool add,
                                 float* c, int ld) {
  alignas(64) std::uint32_t pairs[2][kBufferBlocks * kTileWords];
  const int most = tiles == 1 ? 1 : kBufferBlocks;
  for (int block = 0; block < a.blocks; block += most, add = true) {
    const int blocks = a.blocks - block < most ? a.blocks - block : most;
    for (int lane = 0; lane < b.lanes; lane += 2 * kTileRows) {
      const bool both = b.lanes - lane > kTileRows;
      pair_steps(b, block * kTileDepth, blocks, lane, pairs[0]);
      if (both) pair_steps(b, block * kTileDepth, blocks, lane + kTileRows, pairs[1]);
      for (int tile = 0; tile < tiles; tile += 2) {
        float* sums = c + std::ptrdiff_t{tile} * kTileRows * ld + lane;
        if (both && tile + 1 < tiles) {
          multiply_pairs<2, 2>(a, tile, block, blocks, pairs, add, sums, ld);
        } else if (both) {
          multiply_pairs<1, 2>(a, tile, block, blocks, pairs, add, sums, ld);
        } else if (tile + 1 < tiles) {
          multiply_pairs<2, 1>(a, tile, block, blocks, pairs, add, sums, ld);
        } else {
          multiply_pairs<1, 1>(a, tile, block, blocks, pairs, add, sums, ld);
        }
      }
    }
  }
}

static void multiply_few_rows_amx(const void* packed, int a_ld, int rows, const OperandBlock& b,
                                  bool add, float* c, int ld) {
  const TilesOfA a{static_cast<const std::uint32_t*>(packed), a_ld / kPairs};
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  if (b.lane_stride == 1) return multiply_columns_amx(a, tiles, b, add, c, ld);
  if (tiles == 1) return multiply_steps_of<1>(a, rows, b, add, c, ld);
  if (tiles == 2) return multiply_steps_of<2>(a, rows, b, add, c, ld);
  multiply_steps_of<4>(a, rows, b, add, c, ld);
}

static constexpr FewRowsVerbs few_rows_amx() {
  return {.rows = kRowsOfTiles,
          .row_multiple = 2 * kTileRows,
          .depth_multiple = kTileDepth,
          .element_bytes = 2,
          .packed_bytes = 1 << 17,
          .pack_a = pack_few_rows_amx,
          .multiply = multiply_few_rows_amx};
}

}  // namespace attn::cpu::ATTN_ISA
