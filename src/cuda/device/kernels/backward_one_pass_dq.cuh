// After the kernels that compute S once, backward_sm90 and backward_sm80: dQ from float32 sums in
// the order of accumulators to its tensor.
//
// Reads of C: Element, kHeadDim, kPieceColumns, kBlockN (queries), kPackedQ, kUsedQ, kWide,
// kScalesLate: the sums are not yet multiplied by dropout_scale; kOrdered, and where it is true
// what schedule/dq_turns.cuh reads
//
// Grid: a block of 128 threads for each place (BackwardParams), launched as a dependent of theirs.
#pragma once

#include "device.cuh"
#include "kernels/backward_sm90/dq_order.cuh"
#include "params.cuh"
#include "ptx/dependent.cuh"
#include "schedule/dq_turns.cuh"
#include "schedule/sequence.cuh"
#include "tile/accumulator.cuh"

namespace attn::device {

// kPart: which of the parts of dQ's columns. seen: by any tile; of others there are no sums.
template <class C, int kPart>
ATTN_DEVICE void store_dq_part(const BackwardParams& p, const float* sums, char* (&rows)[2],
                               const bool (&present)[2], const bool (&used)[2], bool seen) {
  using Order = DqOrder<C::kBlockN, C::kHeadDim, C::kPieceColumns>;
  if constexpr (kPart < Order::kParts) {
    constexpr int kColumns = Order::columns(kPart);
    float x[kColumns / 2];
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int piece = kPart * Order::kPartPieces + j / Order::kPieceWords;
      Float4 v{};
      if (seen) {
        v = *reinterpret_cast<const Float4*>(sums + Order::kPiece * piece +
                                             Order::thread_at(threadIdx.x, piece) +
                                             Order::kWord * (j % Order::kPieceWords));
      }
      x[4 * j] = v.x;
      x[4 * j + 1] = v.y;
      x[4 * j + 2] = v.z;
      x[4 * j + 3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!used[i]) {
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) x[4 * j + 2 * i] = x[4 * j + 2 * i + 1] = 0;
      }
      const float factor = p.scale * (C::kScalesLate ? p.dropout_scale : 1.f);
      store_row<typename C::Element, kColumns>(
          x, i, factor, rows[i] + 2 * Order::kMostColumns * kPart, present[i]);
    }
    store_dq_part<C, kPart + 1>(p, sums, rows, present, used, seen);
  }
}

template <class C>
ATTN_DEVICE void backward_one_pass_dq(const BackwardParams& p) {
  wait_for_dependencies();
  // Blocks of threads go from the last place to the first: the sums that were added last are still
  // in L2.
  const int place = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int pair = place / p.query_blocks;
  const int first = place % p.query_blocks * C::kBlockN;
  const int batch = pair / p.heads_q, head = pair % p.heads_q;
  bool seen = true;
  if constexpr (C::kOrdered) {
    seen = DqTurns<C>::any_sees(p, DqTurns<C>::seen(p, batch, head, place % p.query_blocks));
  }
  const auto s = sequence_of<C, QueriesOfSequence>(p, batch);
  if (first >= s.rows_q) return;
  char* rows[2];
  bool present[2], used[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + static_cast<int>(threadIdx.x / 32) * 16 +
                    static_cast<int>(threadIdx.x % 32 / 4) + 8 * i;
    present[i] = row < s.rows_q;
    used[i] = row < s.length_q;
    const long long at = (C::kPackedQ ? 0 : batch * p.dq_strides.batch) +
                         (static_cast<long long>(s.row_q) + row) * p.dq_strides.row +
                         head * p.dq_strides.head;
    rows[i] = static_cast<char*>(p.dq) + 2 * at;
  }
  store_dq_part<C, 0>(p, p.dq_sum + static_cast<long long>(place) * C::kBlockN * C::kHeadDim, rows,
                      present, used, seen);
}

}  // namespace attn::device
