// The end of a tile in the Hopper forward kernel: LSE, and O from the accumulators to memory.
#pragma once

#include "kernels/forward_sm90/scores.cuh"
#include "softmax/denominator.cuh"
#include "softmax/visible_row.cuh"
#include "tile/staged_rows.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Epilogue : ForwardSm90Scores<C, Expressions> {
  using Base = ForwardSm90Scores<C, Expressions>;
  using Base::arrive, Base::consumer, Base::maps, Base::own_at, Base::p;
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
    return {query, Base::query_head(t.w, row),
            (!Base::kEndAligned || row >= 0) && query < t.w.sequence.rows_q,
            query < t.w.sequence.length_q};
  }
  // Of a row among the partial results.
  __device__ __forceinline__ long long partial_row(const Work& w, const Row& r) const {
    return ((static_cast<long long>(w.split) * p.batch + w.sequence.batch) * p.heads_q + r.head) *
               p.seqlen_q +
           r.query;
  }

  // Of the two rows of a thread: LSE, and what O must be multiplied by.
  struct RowEnds {
    float lse[2], factor[2];
  };
  __device__ __forceinline__ RowEnds ends_of(const OnlineSoftmax& softmax, int slot) const {
    constexpr float kLn2 = 0.6931471805599453f;
    const Own t = own_at(slot);
    RowEnds ends;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      const float l = quad_sum(softmax.l[i]);
      float sink = minus_infinity();
      if constexpr (C::kSink) {
        if (!C::kSplits || t.w.split == 0) sink = p.sink[r.head];
      }
      const Denominator end = denominator<C::kSink, true>(softmax.r[i] * kLn2, l, sink);
      ends.lse[i] = r.used ? end.lse : minus_infinity();
      ends.factor[i] = r.used ? end.inverse : 0.f;
      if constexpr (Base::kJudgesLate) {
        if (r.used && l > OnlineSoftmax::kLost) ends.factor[i] = not_a_number();
      }
      if constexpr (C::kDropout) ends.factor[i] *= p.dropout_scale;
    }
    return ends;
  }
  __device__ __forceinline__ void write_lse(const Own& t, const float (&lse)[2]) const {
    if (threadIdx.x % 4 != 0) return;
    const Sequence& q = t.w.sequence;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      if (!r.exists) continue;
      if constexpr (C::kSplits) {
        p.partial_lse[partial_row(t.w, r)] = lse[i];
      } else if (p.lse != nullptr) {
        p.lse[(C::kPackedQ ? 0 : q.batch * p.lse_strides.batch) + r.head * p.lse_strides.head +
              (q.row_q + r.query) * p.lse_strides.row] = lse[i];
      }
    }
  }

  // Of a row of O.
  __device__ __forceinline__ char* row_address(const Own& t, const Row& r) const {
    const Sequence& q = t.w.sequence;
    return static_cast<char*>(p.o) +
           2 * ((C::kPackedQ ? 0 : q.batch * p.o_strides.batch) +
                (q.row_q + r.query) * p.o_strides.row + r.head * p.o_strides.head);
  }

  // Such a row of Q may hold anything, and so does its O.
  __device__ __forceinline__ void clear_unused_rows(Consumer& c, const Own& t) const {
    if constexpr (C::kUsedQ) {
#pragma unroll
      for (int j = 0; j < C::kHeadDimV / 2; ++j) {
        c.o[j] = row_of(t, j / 2 % 2).used ? c.o[j] : 0.f;
      }
    }
  }
  static __device__ __forceinline__ int warp_row() {
    return static_cast<int>(threadIdx.x % 128 / 32) * 16;
  }
  // The tile goes to ForwardSm90Follower, where there is one, and what it needs to know.
  __device__ __forceinline__ void give_back(int slot, bool finite) const {
    if constexpr (Base::kFollowed) {
      if (!finite) {
        if constexpr (C::kStoresBoxes) {
          if (elect_one()) bulk_wait();
        }
        store_shared_byte(this->flag_address(slot, 4 * consumer + warp_row() / 16), 1);
      }
    }
    __syncwarp();
    arrive(Base::kFollowed ? Layout::kStoredTile : Layout::kEmptyTile, slot);
  }
  // Whether the warp's rows of O are. A key that the mask hides may have made one NaN.
  static __device__ __forceinline__ bool is_finite(const Consumer& c, const RowEnds& ends) {
    if constexpr (!Base::kFollowed) return true;
    bool finite = true;
    if constexpr (C::kHidesKeys) finite = zero_if_finite(c.o) == 0;
    if constexpr (Base::kJudgesLate) finite = finite && zero_if_finite(ends.factor) == 0;
    return __all_sync(~0u, finite);
  }

  // The end of a tile, from the accumulators.
  __device__ __forceinline__ void write(Consumer& c, int slot, const RowEnds& ends) const {
    const Own t = own_at(slot);
    write_lse(t, ends.lse);
    clear_unused_rows(c, t);
    const bool finite = is_finite(c, ends);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      if constexpr (C::kSplits) {
        float* o = p.partial_o + partial_row(t.w, r) * C::kHeadDimV;
        store_row_f32<C::kHeadDimV>(c.o, i, ends.factor[i], o, r.exists);
      } else {
        store_row<Element, C::kHeadDimV>(c.o, i, ends.factor[i], row_address(t, r), r.exists);
      }
    }
    give_back(slot, finite);
  }

  // The same through `staging`, the place of the tile's Q, where each warp uses the rows that were
  // its own. When it returns the place may be overwritten.
  static constexpr bool kCanStage =
      C::kStagesQ > 1 && !C::kSplits && Layout::kPanelsV <= Layout::kPanelsK;
  static_assert(kCanStage || !C::kStoresBoxes);
  static constexpr int kStagedPanel = 64 * 128;
  __device__ __forceinline__ void write_staged(Consumer& c, int slot, const RowEnds& ends,
                                               unsigned staging) const {
    if constexpr (C::kUsedQ) clear_unused_rows(c, own_at(slot));
    const bool finite = is_finite(c, ends);
    stage_rows<Element, C::kHeadDimV>(c.o, ends.factor, staging, kStagedPanel, warp_row());
    const Own t = own_at(slot);
    if constexpr (C::kStoresBoxes) {
      const int row = t.w.row0 + 64 * consumer + warp_row();
      fence_proxy_async();
      __syncwarp();
      // Boxes that are written may end outside of the tensor, but not begin before it.
      if (elect_one() && (!Base::kEndAligned || row >= 0)) {
#pragma unroll
        for (int panel = 0; panel < Layout::kPanelsV; ++panel) {
          tma_store_4d(maps.o,
                       staging + static_cast<unsigned>(panel * kStagedPanel + warp_row() * 128),
                       64 * panel, row, t.w.head, t.w.sequence.batch);
        }
        bulk_commit();
      }
      write_lse(t, ends.lse);
      if (elect_one()) bulk_wait_read();
    } else {
      write_lse(t, ends.lse);
      const Own first{t.w, t.row - static_cast<int>(threadIdx.x % 32 / 4), true};
      char* const o = row_address(first, row_of(first, 0));
      copy_staged_rows<C::kHeadDimV>(staging, kStagedPanel, warp_row(), [&](int row) {
        const Row r = row_of({first.w, first.row + row, true}, 0);
        return RowPlace{kGroup > 1 ? row_address(first, r) : o + 2 * row * p.o_strides.row,
                        r.exists};
      });
    }
    give_back(slot, finite);
  }
};

}  // namespace attn::device
