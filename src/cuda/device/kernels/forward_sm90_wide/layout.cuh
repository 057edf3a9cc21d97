// Where forward_sm90_wide keeps its tiles, and what of S and O each of its warps has.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/forward_sm80_wide/layout.cuh"
#include "tile/panel_tile.cuh"

namespace attn::device {

// Places in shared memory, in bytes: Q, for each stage K and V, P, and numbers of rows.
template <class C>
struct ForwardSm90WideLayout {
  static_assert(C::kBlockM == 64 && C::kBlockN == 64 && C::kWarps == 8);
  static constexpr int kColumns = divide_up<128>(C::kHeadDimV) * 64;  // of O, of a warpgroup
  using TileK = PanelTile<64, C::kHeadDim>;                           // and Q
  using TileV = typename TileOfV<C::kVInK, TileK, PanelTile<64, C::kHeadDimV, 128>>::Type;
  using TileP = PanelTile<64, C::kBlockN>;
  static constexpr int kQ = TileK::kBytes, kK = TileK::kBytes;
  static constexpr int kV = C::kVInK ? 0 : TileV::kBytes;
  static constexpr int kQAt = 0, kKAt = kQ, kVAt = kKAt + C::kStages * kK;
  static constexpr int kPAt = kVAt + C::kStages * kV;
  static constexpr int kRowsAt = kPAt + TileP::kBytes;
  // Of each row: its maximum or sum, and what O is multiplied by.
  static constexpr int kBytes = kRowsAt + 4 * C::kBlockM * 2;
};

// A warp has 16 rows and kColumns columns of O. Those of the first warpgroup have these rows of S,
// those of the second ask for Q, K and V.
template <class C>
struct ForwardSm90WideWarp {
  using Layout = ForwardSm90WideLayout<C>;
  static constexpr int kWarpsOfGroup = 1, kGroupsOfO = 1, kFirstLoader = 128;
  static constexpr int kKeys = C::kBlockN;
  // Columns from kHeadDimV on are computed and not stored. With kVInK the last 64 of them may be of
  // what lies behind K, as of P where head sizes 320 and 320 have five panels and O has six.
  static constexpr int kColumns = Layout::kColumns;
  static constexpr bool kAllColumns = C::kHeadDimV == 2 * kColumns;

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  static ATTN_DEVICE int warp() { return static_cast<int>(threadIdx.x / 32); }
  static ATTN_DEVICE bool has_scores() { return warp() < 4; }
  // The first row of the warp in the tile, its warpgroup, its first key of S and its first column
  // of O.
  static ATTN_DEVICE int group_row() { return warp() % 4 * 16; }
  static ATTN_DEVICE int place() { return warp() / 4; }
  static ATTN_DEVICE constexpr int key0() { return 0; }
  static ATTN_DEVICE int column0() { return place() * kColumns; }
  static ATTN_DEVICE int o_row(int) { return group_row(); }
  // Row i of the two of a thread in an accumulator whose first row is `row`.
  static ATTN_DEVICE int row_of(int row, int i) { return row + lane() / 4 + 8 * i; }
};

}  // namespace attn::device
