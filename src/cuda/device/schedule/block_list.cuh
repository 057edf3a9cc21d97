// The blocks of queries or keys that meet a tile of the other, from the first to the last.
#pragma once

#include "device.cuh"
#include "tile/coverage.cuh"

namespace attn::device {

// All threads of a block of threads hold the same list. coverage(i) says what the tile and block i
// have in common; it is asked once for each of `count` blocks, 32 at a time, one a lane.
template <class CoverageOf>
class BlockList {
 public:
  ATTN_DEVICE BlockList(const CoverageOf& coverage, int count)
      : coverage_(coverage), count_(count) {
    load();
  }
  ATTN_DEVICE bool more() const { return present_ != 0; }
  // These are of the block that comes next: its number, and whether the tile sees only a part of
  // it.
  ATTN_DEVICE int block() const { return window_ + first(); }
  ATTN_DEVICE bool mixed() const { return mixed_ >> first() & 1; }
  ATTN_DEVICE void advance() {
    present_ &= present_ - 1;
    if (present_ != 0) return;
    window_ += 32;
    load();
  }

 private:
  ATTN_DEVICE int first() const { return 31 - __clz(static_cast<int>(present_ & -present_)); }
  // The next window that has a block.
  ATTN_DEVICE void load() {
    for (; window_ < count_; window_ += 32) {
      const int block = window_ + static_cast<int>(threadIdx.x % 32);
      const Coverage c = block < count_ ? coverage_(block) : Coverage::empty;
      present_ = __ballot_sync(~0u, c != Coverage::empty);
      mixed_ = __ballot_sync(~0u, c == Coverage::mixed);
      if (present_ != 0) return;
    }
  }

  const CoverageOf& coverage_;
  int count_, window_ = 0;
  unsigned present_ = 0, mixed_ = 0;
};

}  // namespace attn::device
