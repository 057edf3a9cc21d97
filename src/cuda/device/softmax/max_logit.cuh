// Outputs::max_logit: the largest score of each query head, over all rows, keys and launches of a
// call. Each row raises it when it is done.
//
// Reads of C: kMaxLogit, whether it is asked for
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/math.cuh"
#include "schedule/query_tile.cuh"
#include "softmax/online.cuh"

namespace attn::device {

// Raises that of a head, which is -inf before the first kernel of a call. A maximum does not depend
// on the order of threads, so that equal inputs give equal bits. NaN stays, and +inf is NaN.
ATTN_DEVICE void raise_max_logit(const ForwardParams& p, int head, float score) {
  score += 0.f;  // -0 is 0: which comes first must not be seen
  if (!(score <= largest_float())) score = not_a_number();
  float* const to = p.max_logit + head * p.max_logit_stride;
  // Most rows are below what is known by then: a look spares them the atomic operation.
  if (score <= *const_cast<const volatile float*>(to)) return;
  // Numbers from 0 on are ordered as their bits are, with NaN above them all, and those below 0 the
  // other way round.
  const int bits = __float_as_int(score);
  if (bits >= 0) {
    atomicMax(reinterpret_cast<int*>(to), bits);
  } else {
    atomicMin(reinterpret_cast<unsigned*>(to), static_cast<unsigned>(bits));
  }
}

// What a largest score before scaling is multiplied by.
template <class Expressions>
ATTN_DEVICE float score_factor(const ForwardParams& p) {
  return Expressions::kHasScore ? Expressions::kScoreFactor : p.scale;
}

// The largest score of a row whose sum of exponentials is l: NaN where one of the scores is, which
// maxima leave out.
ATTN_DEVICE float largest_or_nan(float largest, float l) {
  return l == l ? largest : not_a_number();
}
// Raises that of the head of a row, as the first of four threads that have the row. largest: before
// it is scaled, over all or some of the keys; l: the sum of their exponentials.
template <class Expressions, class C>
ATTN_DEVICE void raise_row(const ForwardParams& p, const QueryTile<C>& tile, int row, float largest,
                           float l) {
  if constexpr (C::kMaxLogit) {
    if (tile.query_of(row) >= tile.sequence.length_q || threadIdx.x % 4 != 0) return;
    raise_max_logit(p, tile.head_of(row),
                    largest_or_nan(largest * score_factor<Expressions>(p), l));
  }
}

}  // namespace attn::device
