// The verbs of matrix products on AMX: a register tile of C is 32 x 32 sums in four tiles, and four
// loads of 1 KB feed four products. Packed operands are tiles one after the other, so that a load
// reads whole cache lines in order.
#pragma once

#include "cpu/kernels/amx.hpp"
#include "cpu/kernels/matmul.hpp"

namespace attn::cpu::ATTN_ISA {

inline constexpr int kPairs = kTileDepth / 2;
inline constexpr int kTileWords = kTileRows * kPairs;  // of 4 bytes: 1 KB

// out[panel of 32 lanes][block of 32 steps][two tiles]; a tile is [lane][pair of steps], or
// transposed [pair][lane]. Zero past the block's lanes and steps.
template <bool kPairsFirst>
static void pack_tiles(const OperandBlock& block, void* packed) {
  std::uint32_t* out = static_cast<std::uint32_t*>(packed);
  const int padded = (block.lanes + 2 * kTileRows - 1) / (2 * kTileRows) * (2 * kTileRows);
  const int blocks = (block.depth + kTileDepth - 1) / kTileDepth;
  const bool natural_pairs_first = block.lane_stride == 1;
  for (int lane = 0; lane < padded; lane += kTileRows) {
    const int lanes = block.lanes - lane < kTileRows ? block.lanes - lane : kTileRows;
    const std::byte* at = block.at + 2 * lane * block.lane_stride;
    for (int i = 0; i < blocks; ++i) {
      const int step = i * kTileDepth;
      const int steps = block.depth - step < kTileDepth ? block.depth - step : kTileDepth;
      F x[kLanes] = {};
      if (natural_pairs_first) {
        for (int pair = 0; 2 * pair < steps && lanes > 0; ++pair) {
          const std::byte* even = at + 2 * (step + 2 * pair) * block.step_stride;
          const std::byte* odd = 2 * pair + 1 < steps ? even + 2 * block.step_stride : nullptr;
          x[pair] = bit_cast<F>(lanes == kLanes && odd != nullptr
                                    ? widen(load_as<H>(even)) | widen(load_as<H>(odd)) << 16
                                    : load_pairs(even, odd, 0, lanes));
        }
      } else {
        for (int r = 0; r < lanes; ++r) {
          const std::byte* row = at + 2 * (r * block.lane_stride + step);
          if (steps == kTileDepth) {
            x[r] = load_as<F>(row);
          } else {
            __builtin_memcpy(&x[r], row, 2 * static_cast<std::size_t>(steps));
          }
        }
      }
      if (natural_pairs_first != kPairsFirst) transpose(x);
      std::uint32_t* tile =
          out + ((lane / (2 * kTileRows) * blocks + i) * 2 + lane / kTileRows % 2) *
                    std::ptrdiff_t{kTileWords};
      for (int r = 0; r < kLanes; ++r) store(tile + r * kLanes, bit_cast<U>(x[r]));
    }
  }
}

static void multiply_panels_amx(const void* a_panel, const void* b_panel, int depth, bool add,
                                int /*wanted*/, float* c, int ld) {
  const std::uint32_t* a = static_cast<const std::uint32_t*>(a_panel);
  const std::uint32_t* b = static_cast<const std::uint32_t*>(b_panel);
  if (add) {
    load_sums(c, ld);
  } else {
    zero_sums();
  }
  for (int step = 0; step < depth; step += kTileDepth, a += 2 * kTileWords, b += 2 * kTileWords) {
    load_tile<4>(a, 64);
    load_tile<6>(b, 64);
    load_tile<7>(b + kTileWords, 64);
    load_tile<5>(a + kTileWords, 64);
    add_four_products();
  }
  store_sums(c, ld);
}

static constexpr ProductVerbs product_amx() {
  ProductVerbs verbs = product_f32();
  verbs.rows = 2 * kTileRows;
  verbs.columns = 2 * kTileRows;
  verbs.depth_multiple = kTileDepth;
  verbs.element_bytes = 2;
  verbs.pack_a = pack_tiles<false>;
  verbs.pack_b = pack_tiles<true>;
  verbs.multiply = multiply_panels_amx;
  return verbs;
}

}  // namespace attn::cpu::ATTN_ISA
