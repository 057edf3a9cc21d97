// The order in which tiles of keys add to dQ where kOrdered is true: by falling block of keys.
// Tiles are dealt in that order and go through queries from the first that they see on, so that
// under a causal mask each comes to a block after those before it without waiting: tile j sees
// blocks from 2 j on, tile j + 1 is there two steps earlier. Without a mask each is a step behind.
// Of heads whose tiles are KeyTile::from_last all of it is the other way round, since there the
// longest tiles are to come first: each is a step behind.
// The first tile stores what the others add to, so that no zeros are written before; dQ of a block
// that no tile sees has no sums (any_sees).
// What the order needs lies in the workspace behind BackwardParams::d, all of it 0 before the words
// of query_words.cuh are made:
//
//   passed  [place][kOfPlace] each 128 columns of a block of queries' dQ have a word: the last
//           tile of keys that added to them, + 1
//   seen    [batch][query head][block of queries][window of 32 tiles of keys] a bit for each tile
//           that sees some of the block; one batch where kMaskBatches is false and one head where
//           kMaskHeads is
//   drawn   how many tiles the blocks of threads have drawn
//
// So the tile that adds before tile j to a block is the lowest bit of its `seen` above bit j: with
// tiles 0, 2 and 3 seen, tile 0 waits until passed is 3, and tile 3 until it is 0. From the last
// block on it is the highest bit below: tile 2 waits until passed is 1.
//
// Reads of C: kBlockN (queries), kHeadDim, kMaskBatches, kMaskHeads
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"

namespace attn::device {

template <class C>
struct DqTurns {
  // A turn is of a block of queries and up to so many columns of its dQ.
  static constexpr int kColumns = 128;
  static constexpr int kOfPlace = divide_up<kColumns>(C::kHeadDim);

  static ATTN_DEVICE long long places(const BackwardParams& p) {
    return static_cast<long long>(p.batch) * p.heads_q * p.query_blocks;
  }
  static ATTN_DEVICE int windows(const BackwardParams& p) {
    return static_cast<int>(divide_up<32>(static_cast<unsigned>(p.key_blocks)));
  }
  static ATTN_DEVICE long long num_seen(const BackwardParams& p) {
    return static_cast<long long>(C::kMaskBatches ? p.batch : 1) * (C::kMaskHeads ? p.heads_q : 1) *
           p.query_blocks * windows(p);
  }
  static ATTN_DEVICE long long num_words(const BackwardParams& p) {
    return places(p) * kOfPlace + num_seen(p) + 1;
  }
  // The words of all places.
  static ATTN_DEVICE unsigned* passed(const BackwardParams& p) {
    return reinterpret_cast<unsigned*>(p.d + places(p) * C::kBlockN);
  }
  static ATTN_DEVICE unsigned* seen(const BackwardParams& p, int batch, int head_q, int block) {
    const int pair = (C::kMaskBatches ? batch : 0) * (C::kMaskHeads ? p.heads_q : 1) +
                     (C::kMaskHeads ? head_q : 0);
    return passed(p) + places(p) * kOfPlace +
           (static_cast<long long>(pair) * p.query_blocks + block) * windows(p);
  }
  static ATTN_DEVICE unsigned* drawn(const BackwardParams& p) {
    return passed(p) + num_words(p) - 1;
  }

  // Whether some tile sees a block.
  static ATTN_DEVICE bool any_sees(const BackwardParams& p, const unsigned* seen) {
    unsigned any = 0;
    for (int window = 0; window < windows(p); ++window) any |= seen[window];
    return any != 0;
  }
  // What `passed` of a block is when a tile's turn comes. seen: of the block; word: the one that
  // has the tile's bit.
  static ATTN_DEVICE int turn_after(const BackwardParams& p, const unsigned* seen, unsigned word,
                                    int key_block, bool from_last) {
    int window = key_block / 32;
    if (from_last) {
      word &= (1u << key_block % 32) - 1;
      while (word == 0 && --window >= 0) word = seen[window];
    } else {
      word &= ~((2u << key_block % 32) - 1);
      while (word == 0 && ++window < windows(p)) word = seen[window];
      word &= -word;
    }
    return word == 0 ? 0 : 32 * window + 32 - __clz(static_cast<int>(word));
  }
};

}  // namespace attn::device
