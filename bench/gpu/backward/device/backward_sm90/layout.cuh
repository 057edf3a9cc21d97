// Parameters and shared memory of the Hopper backward kernel.
#pragma once

#include "ptx/tma.cuh"

namespace attn::device {

// (column, row, head, batch). Boxes: 64 columns and kBlockM rows (q, d_o) or kBlockN rows (k, v).
struct BackwardMaps {
  TensorMap q, k, v, d_o;
};

// Plain data for host and device. Tensors are contiguous [batch, seqlen, heads, kHeadDim],
// sequences of equal length.
struct BackwardParams {
  const void* o;
  const void* d_o;
  const float* lse;  // [batch, heads, seqlen_q], natural logarithm
  float* lse2;    // [batch, heads, rows], in base 2; infinite past seqlen_q. rows: seqlen_q rounded
                  // up to kBlockM
  float* d;       // the same shape: row sums of dO O; 0 past seqlen_q
  float* dq_sum;  // float32 dQ in the order of accumulators, kBlockM * kHeadDim for each (batch,
                  // head, query block)
  void* dq;
  void* dk;
  void* dv;
  int batch, heads, seqlen_q, seqlen_k;
  int query_blocks, key_blocks;
  // Tiles of each block of threads, most_tiles numbers of which a negative one
  // ends the list.
  const int* tiles;
  int most_tiles;
  int heads_at_once;  // (batch, head) pairs whose tiles are gone through together
  int skew;  // key block j begins at query block j * skew, and wraps (without a causal mask)
  float scale, scale_log2;
  unsigned* stuck;  // 4 words of the host, for a wait that never ends
};

// How dQ is added to memory.
enum class Add {
  red,   // from registers
  bulk,  // through shared memory, by the copy engine
  paced  // likewise, asked for by a producer warp in pieces, of which at most two wait at a time
};

// Sizes in bytes and places. Panels are 64 columns wide, 128 bytes a row, swizzled. P and dS have a
// row for a query and a column for a key.
template <class C>
struct BackwardSm90Layout {
  static constexpr int kPanels = C::kHeadDim / 64, kKeyPanels = C::kBlockN / 64;
  static constexpr int kRowPanel = C::kBlockM * 128, kKeyPanel = C::kBlockN * 128;
  static constexpr int kQ = kRowPanel * kPanels, kK = kKeyPanel * kPanels;
  static constexpr int kP = kRowPanel * kKeyPanels;
  static constexpr int kRows = C::kBlockM * 4;  // LSE or D of a block of queries
  static constexpr int kDq = C::kBlockM * C::kHeadDim * 4;
  static constexpr int kStaged = C::kAdd == Add::red ? 0 : kDq;

  static constexpr int kKAt = 0, kVAt = kKAt + kK;
  static constexpr int kQAt = kVAt + kK, kOAt = kQAt + C::kStagesQ * kQ;
  static constexpr int kPAt = kOAt + C::kStagesQ * kQ, kSAt = kPAt + C::kStagesP * kP;
  static constexpr int kStagedAt = kSAt + C::kStagesP * kP;
  static constexpr int kLseAt = kStagedAt + kStaged, kDAt = kLseAt + C::kStagesQ * kRows;
  // Each ring has a barrier `full` and a barrier `empty` for each place.
  static constexpr int kBarriers = kDAt + C::kStagesQ * kRows;
  static constexpr int kFullK = kBarriers, kEmptyK = kFullK + 8;
  static constexpr int kFullV = kEmptyK + 8, kEmptyV = kFullV + 8;
  static constexpr int kFullQ = kEmptyV + 8, kEmptyQ = kFullQ + 8 * C::kStagesQ;
  static constexpr int kFullO = kEmptyQ + 8 * C::kStagesQ, kEmptyO = kFullO + 8 * C::kStagesQ;
  static constexpr int kFullP = kEmptyO + 8 * C::kStagesQ, kEmptyP = kFullP + 8 * C::kStagesP;
  static constexpr int kFullS = kEmptyP + 8 * C::kStagesP, kEmptyS = kFullS + 8 * C::kStagesP;
  static constexpr int kFullStaged = kEmptyS + 8 * C::kStagesP, kEmptyStaged = kFullStaged + 8;
  static constexpr int kBytes = kEmptyStaged + 8;
  static_assert(kBytes <= 232448);
};

}  // namespace attn::device
