// Blocks of 64 keys that a tile of queries sees, two of which make a tile of keys wherever they
// lie: where a mask leaves out blocks as fine as that, tiles of 128 keys in a row would be half
// empty.
//
// The list of a tile of queries lies in memory: its number of pairs, then the pairs, by rising
// keys. kernels/gather_key_blocks.cuh makes the lists, with one batch where kMaskBatches is false
// and one head where kMaskHeads is: there the lists of all are the same.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/mbarrier.cuh"
#include "schedule/key_blocks.cuh"
#include "schedule/key_words.cuh"

namespace attn::device {

inline constexpr int kGatheredKeys = 64;  // of a block

// A block of a list: its number, and for each part of the tile's rows a bit where they see less
// than all of it, and one where they see nothing.
struct GatheredBlock {
  static constexpr int kNumberBits = 25, kMostParts = 3;
  static constexpr int kNoNumber = (1 << kNumberBits) - 1;  // its keys are past any length
  int bits;
  static ATTN_DEVICE GatheredBlock of(int number, unsigned mixed, unsigned empty) {
    return {static_cast<int>(static_cast<unsigned>(number) | mixed << kNumberBits |
                             empty << (kNumberBits + kMostParts))};
  }
  // What stands behind the last block of an odd number: no row sees a key of it.
  static ATTN_DEVICE GatheredBlock none() { return of(kNoNumber, 7, 7); }
  ATTN_DEVICE int number() const { return bits & kNoNumber; }
  ATTN_DEVICE bool mixed(int part) const { return bits >> (kNumberBits + part) & 1; }
  ATTN_DEVICE bool empty(int part) const { return bits >> (kNumberBits + kMostParts + part) & 1; }
};

// A tile of keys: the numbers of its blocks.
struct BlockPair {
  int first, second;
  // The first key, as `block * kBlockN` is that of a block of keys in a row.
  friend ATTN_DEVICE int operator*(const BlockPair& pair, int) {
    return pair.first * kGatheredKeys;
  }
  // How far the key of a column is from where it would be, were all keys in a row.
  ATTN_DEVICE int gap(int column) const {
    return column < kGatheredKeys ? 0 : (second - first - 1) * kGatheredKeys;
  }
  // The key of column 0 of a tile whose keys from `column` on were in a row.
  ATTN_DEVICE int origin(int column) const {
    return column < kGatheredKeys ? first * kGatheredKeys : (second - 1) * kGatheredKeys;
  }
  // Keys below the length, from the first column on: only the last block is not full.
  ATTN_DEVICE int used(int length) const {
    return length - origin(second == GatheredBlock::kNoNumber ? 0 : kGatheredKeys);
  }
};

// The list of a tile: a pair whose `mixed` is the number of pairs, then as many, of which `mixed`
// is the first block and `empty` the second.
template <class C>
ATTN_DEVICE KeyWord* gathered_blocks_at(const ForwardParams& p, int batch, int head, int m_block) {
  const int pair =
      (C::kMaskBatches ? batch : 0) * key_word_heads<C>(p) + (C::kMaskHeads ? head : 0);
  return p.key_words + (static_cast<long long>(pair) * p.m_blocks + m_block) * p.key_windows;
}

// Goes through the list as KeyBlocks (schedule/key_blocks.cuh) goes through blocks in a row. The
// next pair is loaded while one is worked on. Tiles::gathered(slot) gives the list of a tile.
template <class C, class Tiles>
class GatheredBlocks {
 public:
  using Place = BlockPair;
  struct Pair {
    GatheredBlock first, second;
  };

  // An empty list.
  GatheredBlocks() = default;
  ATTN_DEVICE GatheredBlocks(const Tiles& tiles, int slot)
      : last_(tiles.gathered(slot)), part_(tiles.part()) {
    left_ = static_cast<int>(last_->mixed);
    if (left_ > 0) now_ = load();
    if (left_ > 1) next_ = load();
  }
  // Goes on from the beginning as another warp has read it.
  ATTN_DEVICE GatheredBlocks(const Tiles& tiles, int slot, const Int4& beginning)
      : last_(tiles.gathered(slot) + 1),
        left_(beginning.x),
        part_(tiles.part()),
        now_{{beginning.y}, {beginning.z}} {
    if (left_ > 1) next_ = load();
  }
  ATTN_DEVICE Int4 beginning() const { return {left_, now_.first.bits, now_.second.bits, 0}; }

  ATTN_DEVICE bool more() const { return left_ > 0; }
  ATTN_DEVICE bool longer_than(int count) const { return left_ > count; }
  ATTN_DEVICE BlockPair block() const { return {now_.first.number(), now_.second.number()}; }
  ATTN_DEVICE bool mixed() const { return now_.first.mixed(part_) || now_.second.mixed(part_); }
  ATTN_DEVICE bool empty_for_own() const {
    return now_.first.empty(part_) && now_.second.empty(part_);
  }
  ATTN_DEVICE bool is_plain() const { return more() && !mixed(); }
  ATTN_DEVICE void step(const Tiles&, int) {
    --left_;
    now_ = next_;
    if (left_ > 1) next_ = load();
  }
  ATTN_DEVICE void advance(const Tiles& tiles, int slot) { step(tiles, slot); }
  // One in some eight tiles of keys.
  static ATTN_DEVICE bool is_eighth(const BlockPair& block) { return block.first % 8 == 0; }

 private:
  ATTN_DEVICE Pair load() {
    ++last_;
    const KeyWord pair = *last_;
    return {{static_cast<int>(pair.mixed)}, {static_cast<int>(pair.empty)}};
  }

  const KeyWord* last_ = nullptr;  // that was loaded
  int left_ = 0;                   // pairs to come
  int part_ = 0;                   // of the tile's rows, whose view mixed() tells
  Pair now_{}, next_{};
};

}  // namespace attn::device
