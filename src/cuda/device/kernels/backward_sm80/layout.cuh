// Where backward_sm80 keeps its tiles, and what it is compiled for.
//
// With kSplitScores a warp has twice as many elements of S or of dP as it would have of both, so a
// fragment from shared memory serves more products; where a block has few scores, more warps have
// some.
//
// Reads of C:
//   Element                BFloat16 or Float16
//   Stored                 of dK and dV: Element or Float32; of dQ Element
//   kHeadDim, kHeadDimV    multiples of 8, up to 576
//   kGradient              Gradient::all
//   kBlockM                a multiple of 32
//   kBlockN                a multiple of 64, or 16 or 32
//   kWarps, kScoreWarps, kKeyWarps, kQueryWarps    powers of two; a warp has whole blocks of 16 x
//                          16 of each product
//   kSplitScores           half of the warps compute S and half dP, which they hand over
//   kStages                1 or 2
//   kPieceColumns          of a piece of dQ in memory (backward_sm90/dq_order.cuh)
//   kStoreMatrices         P and dS are stored by stmatrix: 9.0 and up
//   kPackedQ, kPackedK, kUsedQ, kUsedK, kWide, kDropout, kRngState, kLongestFirst
//   kScoreHides            a score may be -inf
//   kFarRows               softmax/far_rows.cuh
#pragma once

#include "device.cuh"
#include "tile/shared_tile.cuh"

namespace attn::device {

// Offsets in shared memory: K, V, P, dS, then for each stage Q, dO, and LSE and D of its rows.
template <class C>
struct BackwardSm80Layout {
  // Warps that share the columns of dV and dK, and of dQ. They take turns at blocks of 16.
  static constexpr int kKeyTurns = C::kWarps / C::kKeyWarps;
  static constexpr int kQueryTurns = C::kWarps / C::kQueryWarps;
  static constexpr int kRound = 16 * (kKeyTurns > kQueryTurns ? kKeyTurns : kQueryTurns);
  using TileQ = SharedTile<C::kHeadDim, kRound>;   // of Q and K
  using TileO = SharedTile<C::kHeadDimV, kRound>;  // of dO and V
  using TileP = SharedTile<C::kBlockM>;            // of P and dS, a row for each query

  static constexpr int kV = C::kBlockM * TileQ::kRowBytes;
  static constexpr int kP = kV + C::kBlockM * TileO::kRowBytes;
  static constexpr int kDs = kP + C::kBlockN * TileP::kRowBytes;
  static constexpr int kStageAt = kDs + C::kBlockN * TileP::kRowBytes;
  // Offsets in a stage, from its start.
  static constexpr int kOutput = C::kBlockN * TileQ::kRowBytes;
  static constexpr int kLse = kOutput + C::kBlockN * TileO::kRowBytes;
  static constexpr int kD = kLse + 4 * C::kBlockN;
  static constexpr int kStage = kD + 4 * C::kBlockN;
  static constexpr int kBytes = kStageAt + C::kStages * kStage;
};

}  // namespace attn::device
