// What forward_sm80_few_rows has in shared memory, and what its configuration becomes.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm80_few_rows/cached_keys.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

// A warp's keys of a block in shared memory: K, then V.
template <class C, int kKeys, bool kCached = kIsCached<C>>
struct KeysStage {
  static constexpr int kVAt = kKeys * SharedTile<C::kHeadDim>::kRowBytes;
  static constexpr int kBytes = kVAt + kKeys * SharedTile<C::kHeadDimV>::kRowBytes;
};
template <class C, int kKeys>
struct KeysStage<C, kKeys, true> : CachedKeys<C, kKeys> {};

// Of an element of K, of V: what strides count.
template <class C, bool kCached = kIsCached<C>>
struct StorageBytes {
  static constexpr int kK = 2, kV = 2;
};
template <class C>
struct StorageBytes<C, true> {
  static constexpr int kK = C::CacheK::kStorageBytes, kV = C::CacheV::kStorageBytes;
};

// Shared memory, in bytes: the stages of each warp, K then V; at the end, in their place, O of each
// warp in float32, then the sums of its rows.
template <class C>
struct ForwardFewRowsLayout {
  using TileK = SharedTile<C::kHeadDim>;
  using TileV = SharedTile<C::kHeadDimV>;
  static constexpr int kKeys = C::kBlockN / C::kWarps;  // of a warp
  using Stage = KeysStage<C, kKeys>;
  static constexpr int kWarpBytes = C::kStages * Stage::kBytes;
  // Rows are padded by 8 floats: the 8 rows that a warp stores at once lie in different banks.
  static constexpr int kRowBytes = 4 * (C::kHeadDimV + 8);
  static constexpr int kSumsAt = C::kWarps * C::kBlockM * kRowBytes;
  static constexpr int kMergeBytes = kSumsAt + C::kWarps * C::kBlockM * 16;
  static constexpr int kBytes =
      C::kWarps * kWarpBytes > kMergeBytes ? C::kWarps* kWarpBytes : kMergeBytes;
};

// A configuration of a kernel, and the same where keys are not split.
template <class C>
struct Unsplit : C {
  static constexpr bool kSplits = false;
};

}  // namespace attn::device
