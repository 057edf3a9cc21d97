// Where backward_sm80 keeps its tiles.
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
