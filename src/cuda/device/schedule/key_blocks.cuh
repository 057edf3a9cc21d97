// The blocks of keys that a tile of queries sees, from the last to the first.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "tile/coverage.cuh"

namespace attn::device {

// Queries [first, last] of heads [head_first, head_last]; first > last: none.
struct QueryRange {
  int first, last, head_first, head_last;
};

// What a list is made from.
struct KeyRange {
  // Rows of the whole block of threads: every warp goes through the same list, because K and V are
  // loaded once for all. And the rows of the caller: what a mask leaves of a block for them.
  QueryRange shared, own;
  int batch, seqlen_q, seqlen_k;
  int begin, end;  // blocks of keys
};

// The state of a list over 32 blocks: the block that comes next, those still to come, and those
// that the caller's rows do not see wholly, or not at all.
struct KeyWindow {
  int next;
  unsigned present, mixed, empty;
};

// What `rows` see of the block that begins with `key`, which is below r.seqlen_k.
template <class C, class Expressions>
ATTN_DEVICE Coverage block_coverage(const Expressions& e, const KeyRange& r, const QueryRange& rows,
                                    int key) {
  if (rows.first > rows.last) return Coverage::empty;
  const int last = min(key + C::kBlockN, r.seqlen_k) - 1;
  const Coverage c = e.classify(rows.first, rows.last, key, last, r.batch, rows.head_first,
                                rows.head_last, r.seqlen_q, r.seqlen_k);
  return c == Coverage::full && key + C::kBlockN > r.seqlen_k ? Coverage::mixed : c;
}

// All threads of a warp hold the same list. With a mask, blocks are classified 32 at a time, one a
// lane, or come classified (C::kClassified). Tiles::keys(slot) gives the KeyRange of a tile; it is
// asked again for every 32 blocks, which is cheaper than keeping its numbers in registers.
// Tiles::key_words(slot, window) gives their words, and Tiles::part() says which is the caller's.
// kOwn: the caller's rows are not all.
template <class C, class Expressions, class Tiles, bool kOwn>
class KeyBlocks {
  // Bounds of keys say nothing of blocks of a list, all of which are mixed.
  static constexpr bool kListed = requires { requires C::kKeyList; };
  static constexpr bool kClassifies = Expressions::kHasMask && !kListed;

 public:
  using Place = int;  // of a tile of keys

  // An empty list.
  KeyBlocks() = default;
  ATTN_DEVICE KeyBlocks(const Tiles& tiles, int slot) {
    const KeyRange r = tiles.keys(slot);
    if constexpr (C::kSplits) begin_ = r.begin;
    if constexpr (kClassifies) {
      next_ = divide_up<32>(r.end) * 32;
    } else {
      next_ = r.shared.first > r.shared.last ? r.begin : r.end;
      whole_ = kListed ? 0 : r.seqlen_k / C::kBlockN;
      empty_ = r.own.first > r.own.last;
    }
    advance(tiles, slot);
  }

  // Goes on from a window.
  ATTN_DEVICE KeyBlocks(const KeyWindow& w, int begin)
      : begin_(begin), next_(w.next), present_(w.present), mixed_(w.mixed), empty_(w.empty) {}
  // The window as rows `own` of the tile see it; with a mask.
  ATTN_DEVICE KeyWindow window(const Tiles& tiles, const KeyRange& r, const QueryRange& own) const {
    const int block = (next_ & ~31) + static_cast<int>(threadIdx.x % 32);
    const bool inside = block >= r.begin && block < r.end;
    const Coverage c =
        inside ? block_coverage<C>(tiles.e, r, own, block * C::kBlockN) : Coverage::empty;
    return {next_, present_, __ballot_sync(~0u, c != Coverage::full),
            __ballot_sync(~0u, c == Coverage::empty)};
  }
  // The window as a part of the tile sees it, where the mask is classified ahead.
  ATTN_DEVICE KeyWindow window(const Tiles& tiles, int slot, int part) const {
    if (!more()) return {next_, 0, 0, 0};
    const KeyWord word = tiles.key_words(slot, next_ / 32)[part];
    return {next_, present_, word.mixed, word.empty};
  }

  ATTN_DEVICE bool more() const { return next_ >= begin_; }
  // Whether more than `count` blocks are to come, as far as it is known: with a mask, blocks
  // before the 32 around the next one count as more.
  ATTN_DEVICE bool longer_than(int count) const {
    if constexpr (kClassifies) {
      return (next_ & ~31) > begin_ || (more() && __popc(present_) >= count);
    } else {
      return next_ - begin_ >= count;
    }
  }
  // These are of the block that comes next: its number; whether the caller's rows see only a part
  // of it, or nothing.
  ATTN_DEVICE int block() const { return next_; }
  static ATTN_DEVICE bool is_eighth(int block) { return block % 8 == 0; }
  ATTN_DEVICE bool mixed() const {
    if constexpr (kClassifies) return mixed_ >> (next_ & 31) & 1;
    return next_ >= whole_;
  }
  ATTN_DEVICE bool empty_for_own() const {
    if constexpr (kClassifies) return empty_ >> (next_ & 31) & 1;
    return empty_;
  }
  // Whether the next step stays among the blocks that are classified, or ends the list.
  ATTN_DEVICE bool steps_inside() const {
    if constexpr (!kClassifies || C::kClassified) return true;
    return present_ != 0 || (next_ & ~31) <= begin_;
  }
  // Whether there is a next block that needs no mask, and a step from it stays inside.
  ATTN_DEVICE bool is_plain() const { return more() && !mixed() && steps_inside(); }
  // Takes that step.
  ATTN_DEVICE void step(const Tiles& tiles, int slot) {
    if constexpr (C::kClassified) {
      advance(tiles, slot);
    } else if constexpr (kClassifies) {
      const int bit = 31 - __clz(static_cast<int>(present_));
      const bool some = present_ != 0;
      present_ &= ~(some ? 1u << bit : 0u);
      next_ = some ? (next_ & ~31) + bit : begin_ - 1;
    } else {
      --next_;
    }
  }
  ATTN_DEVICE void advance(const Tiles& tiles, int slot) {
    if constexpr (kClassifies) {
      int window = next_ & ~31;
      while (present_ == 0) {
        if (window <= begin_) {
          next_ = begin_ - 1;
          return;
        }
        window -= 32;
        if constexpr (C::kClassified) {
          load(tiles, slot, window);
        } else {
          classify(tiles, slot, window);
        }
      }
      const int bit = 31 - __clz(static_cast<int>(present_));
      present_ ^= 1u << bit;
      next_ = window + bit;
    } else {
      --next_;
    }
  }

 private:
  ATTN_DEVICE void classify(const Tiles& tiles, int slot, int window) {
    const KeyRange r = tiles.keys(slot);
    const int block = window + static_cast<int>(threadIdx.x % 32);
    const bool inside = block >= r.begin && block < r.end;
    const Coverage all =
        inside ? block_coverage<C>(tiles.e, r, r.shared, block * C::kBlockN) : Coverage::empty;
    Coverage own = all;
    if constexpr (kOwn) {
      own = inside ? block_coverage<C>(tiles.e, r, r.own, block * C::kBlockN) : Coverage::empty;
    }
    present_ = __ballot_sync(~0u, all != Coverage::empty);
    mixed_ = __ballot_sync(~0u, own != Coverage::full);
    empty_ = __ballot_sync(~0u, own == Coverage::empty);
  }
  // A block that some part sees is present.
  ATTN_DEVICE void load(const Tiles& tiles, int slot, int window) {
    const KeyWord* words = tiles.key_words(slot, window / 32);
    unsigned hidden = ~0u;
#pragma unroll
    for (int i = 0; i < C::kParts; ++i) hidden &= words[i].empty;
    present_ = ~hidden;
    if constexpr (C::kSplits) {  // words are of all blocks; one before begin_ ends the list
      const int end = tiles.keys(slot).end - window;
      if (end < 32) present_ &= (1u << end) - 1;
    }
    if constexpr (kOwn) {
      const KeyWord own = words[tiles.part()];
      mixed_ = own.mixed;
      empty_ = own.empty;
    }
  }

  int begin_ = 0, next_ = -1;
  int whole_ = 0;  // without a mask: blocks that are inside the sequence
  // With a mask, of the 32 blocks around next_: those still to come, those not wholly seen, those
  // not seen. Without: only whether the caller has no rows.
  unsigned present_ = 0, mixed_ = 0, empty_ = 0;
};

}  // namespace attn::device
