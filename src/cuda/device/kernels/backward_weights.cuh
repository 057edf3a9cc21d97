// What the portable backward kernels with tensor cores make of each score between their products: P
// and dS (FlashAttention-2, algorithm 2, lines 11 and 14).
//
// Reads of C: kDropout, kRngState, kScoreHides (a score may be -inf), kFarRows
// Slope: src/cuda/codegen/expression_gradients.hpp.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/math.cuh"
#include "schedule/sequence.cuh"
#include "softmax/dropout.cuh"
#include "softmax/far_rows.cuh"

namespace attn::device {

// Makes P and dS of the scores of one sequence and head of Q.
template <class C, class Expressions, class Slope>
struct BackwardWeights {
  static constexpr float kLog2E = 1.4426950408889634f;

  const BackwardParams& p;
  const Expressions& e;
  const Slope& slope;
  const Sequence& sequence;
  int head_q;

  // LSE in base 2 of a query, or what stands for it.
  ATTN_DEVICE RowReference reference(float lse2, int query) const {
    return reference_of<C>(p, lse2, sequence.batch, head_q, query);
  }
  // Never above 1, however large the scores are.
  ATTN_DEVICE float probability(float dot, const RowReference& row, int query, int key) const {
    float x = dot;
    if constexpr (Expressions::kHasScore) {
      x = e.score(dot, query, key, sequence.batch, head_q, sequence.length_q, sequence.length_k);
    }
    return probability_of(x, row);
  }
  // The same, of a score by expression; of q.k where there is none. kHides: it may be -inf, and LSE
  // NaN.
  template <bool kHides = C::kScoreHides>
  ATTN_DEVICE float probability_of(float x, const RowReference& row) const {
    float c = p.scale * kLog2E;
    if constexpr (Expressions::kHasScore) {
      if constexpr (kHides) {
        if (x == minus_infinity()) return 0;  // also where LSE is NaN
      }
      c = Expressions::kScoreFactor * kLog2E;
    }
    if constexpr (C::kFarRows) x -= row.m;
    const float y = fmaf(x, c, -row.lse2);
    return exp2_approximate(y > 0 ? 0 : y);
  }

  // s, which is S, <- P where dropout keeps it, to be multiplied by dropout_scale with the sum; dp
  // <- dS. Each only if it is asked for; 0 where a query of a mixed block does not see a key.
  template <bool kOfP, bool kOfDs>
  ATTN_DEVICE void weigh(float probable, float& s, float& dp, float d, int query, int key,
                         bool mixed, bool kept) const {
    bool visible = true;
    if (mixed) {
      visible = static_cast<unsigned>(query) < static_cast<unsigned>(sequence.length_q) &&
                key < sequence.length_k;
      if constexpr (Expressions::kHasMask) {
        visible = visible &&
                  e.mask(query, key, sequence.batch, head_q, sequence.length_q, sequence.length_k);
      }
    }
    if constexpr (kOfDs) {
      float z = 1;
      if constexpr (C::kDropout) z = kept ? p.dropout_scale : 0;
      float ds = probable * fmaf(z, dp, -d);
      if constexpr (Slope::kHasSlope) {
        ds *= slope.slope(s * p.scale, query, key, sequence.batch, head_q, sequence.length_q,
                          sequence.length_k);
      }
      const bool hides = mixed || C::kScoreHides;  // 0 then takes nothing of V
      dp = hides && (!visible || probable == 0) ? 0 : ds;
    }
    if constexpr (kOfP) s = visible && kept ? probable : 0;
  }

  ATTN_DEVICE Dropout<C::kRngState> dropout() const {
    return dropout_of<C::kRngState>(p, sequence.batch);
  }
  ATTN_DEVICE unsigned batch_head() const {
    return static_cast<unsigned>(sequence.batch) * static_cast<unsigned>(p.heads_q) +
           static_cast<unsigned>(head_q);
  }
  // What dropout keeps of the queries `query` and that + 8 and kColumns keys from `first_key` on,
  // both multiples of 64, or of 32 or 16 (then a part of what is drawn is of no use): bit r is
  // register r of an accumulator (tile/accumulator.cuh, docs/numerics.md).
  template <int kColumns>
  ATTN_DEVICE unsigned long long draw(int query, int first_key) const {
    constexpr int kPairs = kColumns % 64 == 0 ? 8 : kColumns % 32 == 0 ? 4 : 2;  // of a call
    unsigned long long kept = 0;
    const auto all = dropout();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const DropoutRow row(all, batch_head(), static_cast<unsigned>(query + 8 * i));
#pragma unroll
      for (int group = 0; group < kColumns / (8 * kPairs); ++group) {
        const int key = first_key + 8 * kPairs * group;
        const bool upper = kPairs == 4 && key % 64 != 0;
        const DropoutCall drawn =
            row.call(DropoutColumns(all, key / 64, static_cast<int>(threadIdx.x % 4)));
#pragma unroll
        for (int t = 0; t < kPairs; ++t) {
          const unsigned numbers =
              kPairs == 2 ? drawn.pair_at(key % 64 / 8 + t) : drawn.pair(t % 4, upper || t >= 4);
          const int r = 4 * (kPairs * group + t) + 2 * i;
          kept |= static_cast<unsigned long long>(keeps(numbers, false)) << r |
                  static_cast<unsigned long long>(keeps(numbers, true)) << (r + 1);
        }
      }
    }
    return kept;
  }
  // Whether dropout keeps one of the two elements of a pair, the odd one or the other.
  ATTN_DEVICE bool keeps(unsigned pair, bool odd) const {
    return keeps_half(pair, odd, p.dropout_rule);
  }
};

}  // namespace attn::device
