// The dropout mask (dropout.cuh) as bits that one thread draws and another may take.
#pragma once

#include "device.cuh"
#include "ptx/halves.cuh"
#include "ptx/warpgroup.cuh"
#include "softmax/dropout.cuh"

namespace attn::device {

// Makes what dropout_of makes, where all threads of a warp call it: the keys take no register of
// every thread, and a state in memory is read once.
template <bool kRngState>
ATTN_DEVICE Dropout<kRngState> dropout_of_warp(const ProblemParams& p) {
  auto d = dropout_of<kRngState>(p);
  if constexpr (kRngState) {
    d = {{uniform(d.first_key[0]), uniform(d.first_key[1])}, uniform(d.counter3), d.rule};
  }
  return d;
}

// A bit for each score that is kept, of the 64 keys of two rows that a thread of an accumulator
// holds (tile/accumulator.cuh): of keys 8 t + 2 (lane % 4) + {0, 1} bits 7 - t and 23 - t in the
// first row, 8 more in the second. So one shift brings the bits of four pairs of neighbours to the
// highest places of the four bytes.
struct KeptBits {
  // Draws the bits of the i-th row.
  template <bool kRngState>
  static ATTN_DEVICE unsigned draw(const DropoutRow<kRngState>& row, int i,
                                   const DropoutColumns& columns) {
    const DropoutCall drawn = row.call(columns);
    const DropoutRule& rule = row.dropout.rule;
    unsigned kept = rule.flip & 0x00ff00ffu << 8 * i;  // all at once, not each pair
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      kept ^= halves_at_least(drawn.pair(t), rule.least) & 0x00010001u << (8 * i + 7 - t);
    }
    return kept;
  }
  // A mask of the k-th pair of neighbours, two rows by turns: all bits are set of each half that is
  // kept.
  static ATTN_DEVICE unsigned halves(unsigned kept, int k) {
    return k % 2 == 0 ? signs_of_bytes<0>(kept << k / 2) : signs_of_bytes<1>(kept << k / 2);
  }
  // Which score of the accumulator bit `bit` is of.
  static ATTN_DEVICE int score_of(int bit) {
    return 4 * (7 - bit % 8) + 2 * (bit / 8 % 2) + bit / 16;
  }
};

}  // namespace attn::device
