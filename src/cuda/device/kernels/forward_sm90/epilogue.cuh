// The end of a tile in the Hopper forward kernel: LSE, and O from the accumulators to memory.
#pragma once

#include "kernels/forward_sm90/scores.cuh"
#include "softmax/denominator.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Epilogue : ForwardSm90Scores<C, Expressions> {
  using Base = ForwardSm90Scores<C, Expressions>;
  using Base::arrive, Base::own_at, Base::p;
  using Base::kGroup;
  using typename Base::Consumer, typename Base::Element, typename Base::Layout;
  using typename Base::Own, typename Base::Work;

  // The two rows of a thread at the end of a tile.
  struct Row {
    int query, head;
    bool exists, used;
  };
  __device__ __forceinline__ Row row_of(const Own& t, int i) const {
    const int row = t.row + 8 * i;
    const int query = row / kGroup;
    return {query, kGroup > 1 ? t.w.head * kGroup + row % kGroup : t.w.head,
            query < t.w.sequence.rows_q, query < t.w.sequence.length_q};
  }
  // Of a row among the partial results.
  __device__ __forceinline__ long long partial_row(const Work& w, const Row& r) const {
    return ((static_cast<long long>(w.split) * p.batch + w.sequence.batch) * p.heads_q + r.head) *
               p.seqlen_q +
           r.query;
  }

  // Writes LSE; returns in `factor` what O must be multiplied by.
  __device__ __forceinline__ void close(const OnlineSoftmax& softmax, int slot,
                                        float (&factor)[2]) const {
    constexpr float kLn2 = 0.6931471805599453f;
    const Own t = own_at(slot);
    const Sequence& q = t.w.sequence;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      const float l = quad_sum(softmax.l[i]);
      float sink = minus_infinity();
      if constexpr (C::kSink) {
        if (!C::kSplits || t.w.split == 0) sink = p.sink[r.head];
      }
      const Denominator end = denominator<C::kSink>(softmax.r[i] * kLn2, l, sink);
      float lse = end.lse;
      factor[i] = end.inverse;
      if (!r.used) {
        factor[i] = 0;
        lse = minus_infinity();
      }
      if constexpr (C::kDropout) factor[i] *= p.dropout_scale;
      if (!r.exists || threadIdx.x % 4 != 0) continue;
      if constexpr (C::kSplits) {
        p.partial_lse[partial_row(t.w, r)] = lse;
      } else if (p.lse != nullptr) {
        p.lse[(C::kPackedQ ? 0 : q.batch * p.lse_strides.batch) + r.head * p.lse_strides.head +
              (q.row_q + r.query) * p.lse_strides.row] = lse;
      }
    }
  }

  // Writes O and gives the tile's slot back.
  __device__ __forceinline__ void finish(Consumer& c, int slot, const float (&factor)[2]) const {
    const Own t = own_at(slot);
    const Sequence& q = t.w.sequence;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      if constexpr (C::kUsedQ) {  // such a row of Q may hold anything
#pragma unroll
        for (int j = 0; j < C::kHeadDimV / 4; ++j) {
          float& x = c.o[4 * (j / 2) + 2 * i + j % 2];
          x = r.used ? x : 0.f;
        }
      }
      if constexpr (C::kSplits) {
        float* o = p.partial_o + partial_row(t.w, r) * C::kHeadDimV;
        store_row_f32<C::kHeadDimV>(c.o, i, factor[i], o, r.exists);
      } else {
        char* o = static_cast<char*>(p.o) +
                  2 * ((C::kPackedQ ? 0 : q.batch * p.o_strides.batch) +
                       (q.row_q + r.query) * p.o_strides.row + r.head * p.o_strides.head);
        store_row<Element, C::kHeadDimV>(c.o, i, factor[i], o, r.exists);
      }
    }
    __syncwarp();
    arrive(Layout::kEmptyTile, slot);
  }
};

}  // namespace attn::device
