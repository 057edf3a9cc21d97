// Where forward_sm80_wide keeps its tiles, and what of S and O each of its warps has.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

template <bool kVInK, class TileK, class TileV>
struct TileOfV {
  using Type = TileV;
};
template <class TileK, class TileV>
struct TileOfV<true, TileK, TileV> {
  using Type = TileK;
};

// Places in shared memory, in bytes: Q, for each stage K and V, P, and numbers of rows. With
// kQInRegisters Q comes by way of the last stage, before it has a block.
template <class C>
struct ForwardSm80WideLayout {
  static constexpr int kGroups = C::kBlockM / 16;            // of warps
  static constexpr int kWarpsOfGroup = C::kWarps / kGroups;  // share the keys of S
  using TileK = SharedTile<C::kHeadDim, 32>;                 // and Q
  using TileV = typename TileOfV<C::kVInK, TileK, SharedTile<C::kHeadDimV>>::Type;
  using TileP = SharedTile<C::kBlockN>;
  static constexpr int kQ = C::kBlockM * TileK::kRowBytes;
  static constexpr int kK = C::kBlockN * TileK::kRowBytes;
  static constexpr int kV = C::kVInK ? 0 : C::kBlockN * TileV::kRowBytes;
  static constexpr int kKAt = C::kQInRegisters ? 0 : kQ, kVAt = kKAt + C::kStages * kK;
  static constexpr int kQAt = C::kQInRegisters ? kKAt + (C::kStages - 1) * kK : 0;
  static_assert(!C::kQInRegisters || (C::kStages > 1 && C::kBlockM <= C::kBlockN));
  static constexpr int kPAt = kVAt + C::kStages * kV;
  static constexpr int kRowsAt = kPAt + C::kBlockM * TileP::kRowBytes;
  // Of each row: the maximum or sum of each warp of the group, and what O is multiplied by.
  static constexpr int kBytes = kRowsAt + 4 * C::kBlockM * (kWarpsOfGroup + 1);
};

// A warp has 16 rows and kKeys keys of S, and all rows and kColumns columns of O.
template <class C>
struct ForwardSm80WideWarp {
  using Layout = ForwardSm80WideLayout<C>;
  static constexpr int kGroups = Layout::kGroups, kWarpsOfGroup = Layout::kWarpsOfGroup;
  static constexpr int kGroupsOfO = kGroups;  // of 16 rows, of which the warp has columns of O
  static constexpr int kFirstLoader = 0;      // threads from there on ask for Q, K and V
  static constexpr int kKeys = C::kBlockN / kWarpsOfGroup;
  // Columns from kHeadDimV on are computed and not stored.
  static constexpr int kColumns = divide_up<16 * C::kWarps>(C::kHeadDimV) * 16;
  static constexpr bool kAllColumns = C::kHeadDimV % (16 * C::kWarps) == 0;
  static_assert(C::kBlockM % 16 == 0 && C::kWarps % kGroups == 0);
  static_assert(kKeys == 8 || kKeys % 16 == 0);

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  static ATTN_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  static ATTN_DEVICE constexpr bool has_scores() { return true; }
  // Of S: the first row of the warp in the tile, its place in the group and its first key of a
  // block. Of O: its first column.
  static ATTN_DEVICE int group_row() { return warp() / kWarpsOfGroup * 16; }
  static ATTN_DEVICE int place() { return warp() % kWarpsOfGroup; }
  static ATTN_DEVICE int key0() { return place() * kKeys; }
  static ATTN_DEVICE int column0() { return warp() * kColumns; }
  static ATTN_DEVICE int o_row(int group) { return 16 * group; }
  // Row i of the two of a thread in an accumulator whose first row is `row`.
  static ATTN_DEVICE int row_of(int row, int i) { return row + lane() / 4 + 8 * i; }
};

}  // namespace attn::device
