// Shared memory of the Hopper kernel of a bias's gradient: a ring of pairs of operands.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/backward_sm90/layout.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/warpgroup.cuh"
#include "schedule/buffer_tiles.cuh"

namespace attn::device {

// Sizes in bytes and places. A place of the ring has the rows and the keys of one product: Q and K,
// or dO and V, in panels of 64 columns, 128 bytes a row, swizzled.
template <class C>
struct BackwardSm90BuffersLayout {
  static constexpr int kGroups = C::kBlockM / 64;
  static constexpr int kPanels = divide_up<64>(C::kHeadDim);
  static constexpr int kPanelsV = divide_up<64>(C::kHeadDimV);
  static constexpr int kMostPanels = kPanels > kPanelsV ? kPanels : kPanelsV;
  static constexpr int kRowPanel = C::kBlockM * 128, kKeyPanel = C::kBlockN * 128;
  static constexpr int kKeysAt = kMostPanels * kRowPanel;  // in a place
  static constexpr int kPlace = kKeysAt + kMostPanels * kKeyPanel;

  static constexpr int kStepBytes = 32;
  static constexpr int kStepAt = C::kStages * kPlace;
  static constexpr int kFull = kStepAt + C::kStages * kStepBytes;
  static constexpr int kEmpty = kFull + 8 * C::kStages;
  static constexpr int kBytes = kEmpty + 8 * C::kStages;
  static_assert(kBytes <= 232448);
  static_assert(C::kWarps == 4 + 4 * kGroups && C::kBlockM % 64 == 0);
  // What the registers of the launch are shared out to; more would be waited for without end.
  static constexpr int kLaunchRegisters = 65536 / (32 * C::kWarps) / 8 * 8;
  static_assert(C::kProducerRegisters + kGroups * C::kScoreRegisters <=
                (1 + kGroups) * kLaunchRegisters);
  static_assert(C::kBlockN % C::kPartKeys == 0 && C::kPartKeys % 32 == 0);
};

// What comes with the Q and K of a step: all that is to know of it, so that nobody else looks for
// its sequence.
struct BackwardSm90BuffersStep {
  // mixed: a query does not see all keys. last: of a tile. unseen: nobody sees the tile, so there
  // are no operands. end: there are no more tiles.
  static constexpr int kMixed = 1, kLast = 2, kUnseen = 4, kEnd = 8;
  int flags;
  int query0, key0;  // of the tile
  int head, batch;   // of Q
  int length_q, length_k, split;
};

// Use n of the ring has place n % kStages. A step takes two: that of Q and K, then that of dO and
// V. Without products it takes one.
template <class C>
struct BackwardSm90BuffersRing {
  using Layout = BackwardSm90BuffersLayout<C>;
  using Step = BackwardSm90BuffersStep;
  using Ring = BackwardRing<C::kStages>;
  unsigned shared;  // 1024-byte aligned

  ATTN_DEVICE unsigned barrier(int first, int stage) const {
    return shared + static_cast<unsigned>(first + 8 * stage);
  }
  ATTN_DEVICE unsigned place(unsigned n) const {
    return shared + static_cast<unsigned>(Ring::stage(n) * Layout::kPlace);
  }
  ATTN_DEVICE unsigned step_address(unsigned n) const {
    return shared + static_cast<unsigned>(Layout::kStepAt + Ring::stage(n) * Layout::kStepBytes);
  }
  ATTN_DEVICE Step step(unsigned n) const {
    const Int4 a = load_shared(step_address(n)), b = load_shared(step_address(n) + 16);
    return {uniform(a.x), a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
  ATTN_DEVICE void wait_full(unsigned n) const {
    mbarrier_wait(barrier(Layout::kFull, Ring::stage(n)), Ring::parity(n));
  }
  ATTN_DEVICE void wait_empty(unsigned n) const {
    mbarrier_wait(barrier(Layout::kEmpty, Ring::stage(n)), Ring::parity(n) ^ 1);
  }
  // One arrival a warp, for what all its threads read.
  ATTN_DEVICE void give_back(unsigned n) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier(Layout::kEmpty, Ring::stage(n)));
  }
};

}  // namespace attn::device
