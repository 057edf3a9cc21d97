// Shared memory of the Hopper forward kernel: places, and rings of barriers.
#pragma once

#include "ptx/tma.cuh"

namespace attn::device {

struct ForwardMaps {
  // q: (column, head of the group, query, group, batch); k, v: (column, key, head, batch or page);
  // o: (column, query, head, batch), where kStoresBoxes.
  TensorMap q, k, v, o;
};

// Sizes in bytes and places in shared memory. Panels are 64 columns wide, 128 bytes a row,
// swizzled.
template <class C>
struct ForwardSm90Layout {
  static constexpr int kPanelsK = (C::kHeadDim + 63) / 64, kPanelsV = (C::kHeadDimV + 63) / 64;
  static constexpr int kQ = 64 * 128 * kPanelsK;  // of one consumer
  static constexpr int kPanelBytes = C::kBlockN * 128;
  static constexpr int kK = kPanelBytes * kPanelsK, kV = kPanelBytes * kPanelsV;
  static constexpr int kQs = C::kStagesQ * C::kConsumers;
  static constexpr int kQAt = 0, kKAt = kQAt + kQs * kQ, kVAt = kKAt + C::kStagesK * kK;
  static constexpr int kFullQ = kVAt + C::kStagesV * kV, kEmptyQ = kFullQ + 8 * kQs;
  static constexpr int kFullK = kEmptyQ + 8 * kQs, kEmptyK = kFullK + 8 * C::kStagesK;
  static constexpr int kFullV = kEmptyK + 8 * C::kStagesK, kEmptyV = kFullV + 8 * C::kStagesV;
  // The tiles at hand, from the producer to the consumers, which hold two: the one that ends and
  // the one that begins.
  static constexpr int kTileStages = 4, kTileBytes = 48 + 16 * C::kConsumers;
  static constexpr int kNearEnd = kEmptyV + 8 * C::kStagesV;
  static constexpr int kFullTile = kNearEnd + 8;
  static constexpr int kEmptyTile = kFullTile + 8 * kTileStages;
  static constexpr int kTileAt = (kEmptyTile + 8 * kTileStages + 15) / 16 * 16;
  static constexpr int kStoredTile = kTileAt + kTileBytes * kTileStages;  // of a follower
  static constexpr int kBytes = kStoredTile + 8 * kTileStages;
};

// Use number n of a ring of barriers: which one, and the parity of its phase, so that a counter is
// all there is to keep. It may wrap where kStages is a power of two; others last for 2^32 uses.
template <int kStages>
struct Ring {
  static __device__ __forceinline__ int stage(unsigned n) { return static_cast<int>(n % kStages); }
  static __device__ __forceinline__ unsigned parity(unsigned n) { return n / kStages & 1; }
};

}  // namespace attn::device
