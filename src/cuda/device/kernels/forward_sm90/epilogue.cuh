// The end of a tile in the Hopper forward kernel: LSE, and O from the accumulators to memory.
#pragma once

#include "device.cuh"
#include "kernels/forward_sm90/products.cuh"
#include "softmax/denominator.cuh"
#include "softmax/max_logit.cuh"
#include "softmax/visible_row.cuh"
#include "tile/staged_rows.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Epilogue {
  using Tiles = ForwardSm90Tiles<C, Expressions>;
  using State = ForwardSm90State<C>;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using Output = typename C::Output;
  using Own = typename Tiles::Own;
  using Work = typename Tiles::Work;

  const Tiles& tiles;

  // A row of a thread's two, at the end of a tile.
  struct Row {
    int query, head;
    bool exists, used;
  };
  ATTN_DEVICE Row row_of(const Own& t, int i) const {
    const int row = t.row + 8 * i;
    const int query = row / C::kGroup;
    return {query, Tiles::query_head(t.w, row),
            (!Tiles::kEndAligned || row >= 0) && query < t.w.sequence.rows_q,
            query < t.w.sequence.length_q};
  }
  // The place of a row among the partial results.
  ATTN_DEVICE long long partial_row(const Work& w, const Row& r) const {
    return ((static_cast<long long>(w.split) * tiles.p.batch + w.sequence.batch) * tiles.p.heads_q +
            r.head) *
               tiles.p.seqlen_q +
           r.query;
  }

  // What ends the two rows of a thread: LSE, with kSplits also its rest (PartialLse), and what O
  // must be multiplied by.
  struct RowEnds {
    float lse[2], rest[C::kSplits ? 2 : 1], factor[2];
  };
  ATTN_DEVICE RowEnds ends_of(const OnlineSoftmax& softmax, int slot) const {
    const Own t = tiles.own_at(slot);
    RowEnds ends;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      const float l = quad_sum(softmax.l[i]);
      float sink = minus_infinity();
      if constexpr (C::kSink) {
        if (!C::kSplits || t.w.split == 0) sink = tiles.p.sink[r.head];
      }
      if constexpr (C::kMaxLogit) {
        const float seen = max_or_nan(softmax.top[i], __shfl_xor_sync(~0u, softmax.top[i], 1));
        float largest = max_or_nan(seen, __shfl_xor_sync(~0u, seen, 2));
        largest *= score_factor<Expressions>(tiles.p);
        if constexpr (C::kFloat8 && !Expressions::kHasScore) {
          largest *= fabsf(tiles.score_scale(t.w));
        }
        if (r.exists && r.used && threadIdx.x % 4 == 0) {
          raise_max_logit(tiles.p, r.head, largest);
        }
      }
      const TwoFloats top =
          natural_top<Tiles::kFar>(softmax.r[i], softmax.m[i], Expressions::kScoreFactor);
      const Denominator end = denominator<C::kSink, true, C::kSplits>(top, l, sink);
      if constexpr (C::kSplits) {
        const PartialLse part = r.used ? end.part : nothing_seen();
        ends.lse[i] = part.lse;
        ends.rest[i] = part.rest;
      } else {
        ends.lse[i] = r.used ? end.lse : minus_infinity();
      }
      ends.factor[i] = r.used ? end.inverse : 0.f;
      if constexpr (C::kFloat8) ends.factor[i] *= tiles.value_scale(t.w);
      if constexpr (Tiles::kJudgesLate) {
        if (r.exists && r.used && !(l <= OnlineSoftmax::kLost)) ends.factor[i] = not_a_number();
      }
      if constexpr (C::kDropout) ends.factor[i] *= tiles.p.dropout_scale;
      if constexpr (C::kDropsByProduct) ends.factor[i] *= factor_after_product<Element>();
    }
    return ends;
  }
  ATTN_DEVICE void write_lse(const Own& t, const RowEnds& ends) const {
    if (threadIdx.x % 4 != 0) return;
    const Sequence& q = t.w.sequence;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      if (!r.exists) continue;
      if constexpr (C::kSplits) {
        tiles.p.partial_lse[partial_row(t.w, r)] = {ends.lse[i], ends.rest[i]};
      } else if (tiles.p.lse != nullptr) {
        tiles.p.lse[(C::kPackedQ ? 0 : q.batch * tiles.p.lse_strides.batch) +
                    r.head * tiles.p.lse_strides.head +
                    (q.row_q + r.query) * tiles.p.lse_strides.row] = ends.lse[i];
      }
    }
  }

  // The address of a row of O.
  ATTN_DEVICE char* row_address(const Own& t, const Row& r) const {
    const Sequence& q = t.w.sequence;
    return static_cast<char*>(tiles.p.o) +
           kBytesOf<Output> *
               ((C::kPackedQ ? 0 : q.batch * tiles.p.o_strides.batch) +
                (q.row_q + r.query) * tiles.p.o_strides.row + r.head * tiles.p.o_strides.head);
  }

  // O of rows that are not in use becomes 0: their Q may hold anything, and so may their O.
  ATTN_DEVICE void clear_unused_rows(State& c, const Own& t) const {
    if constexpr (C::kUsedQ) {
#pragma unroll
      for (int j = 0; j < C::kHeadDimV / 2; ++j) {
        c.o[j] = row_of(t, j / 2 % 2).used ? c.o[j] : 0.f;
      }
    }
  }
  static ATTN_DEVICE int warp_row() { return static_cast<int>(threadIdx.x % 128 / 32) * 16; }
  // Gives the tile back, to ForwardSm90Follower, where there is one, and tells it whether rows are
  // not finite.
  ATTN_DEVICE void give_back(int slot, bool finite) const {
    if constexpr (Tiles::kFollowed) {
      if (!finite) {
        if constexpr (C::kStoresBoxes) {
          if (elect_one()) bulk_wait();
        }
        store_shared_byte(tiles.flag_address(slot, 4 * tiles.consumer + warp_row() / 16), 1);
      }
    }
    __syncwarp();
    const auto n = static_cast<unsigned>(slot);
    if constexpr (Tiles::kFollowed) {
      tiles.stored_ring().release(n);
    } else {
      tiles.tile_ring().release(n);
    }
  }
  // Whether the warp's rows of O are finite. A key that the mask hides may have made one NaN.
  static ATTN_DEVICE bool is_finite(const State& c, const RowEnds& ends) {
    if constexpr (!Tiles::kFollowed) return true;
    bool finite = true;
    if constexpr (C::kHidesKeys) finite = zero_if_finite(c.o) == 0;
    if constexpr (Tiles::kJudgesLate) finite = finite && zero_if_finite(ends.factor) == 0;
    return __all_sync(~0u, finite);
  }

  // Ends a tile: LSE and O go to memory from registers. Where other tiles are staged this is one
  // without rows, such as a pause, after which tiles may be stored again: what the copy engine
  // still stores of them must not come later.
  ATTN_DEVICE void write(State& c, int slot, const RowEnds& ends) const {
    if constexpr (C::kStoresBoxes && Tiles::kJudgesLate) {
      if (elect_one()) bulk_wait();
    }
    const Own t = tiles.own_at(slot);
    write_lse(t, ends);
    clear_unused_rows(c, t);
    const bool finite = is_finite(c, ends);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Row r = row_of(t, i);
      if constexpr (C::kSplits) {
        float* o = tiles.p.partial_o + partial_row(t.w, r) * C::kHeadDimV;
        store_row_f32<C::kHeadDimV>(c.o, i, ends.factor[i], o, r.exists);
      } else {
        store_row<Output, C::kHeadDimV>(c.o, i, ends.factor[i], row_address(t, r), r.exists);
      }
    }
    give_back(slot, finite);
  }

  // Writes the same through `staging`, the place of the tile's Q, where each warp uses the rows
  // that were its own. When it returns the place may be overwritten. O in float32 is too wide.
  static constexpr bool kCanStage =
      !C::kSplits && kBytesOf<Output> == 2 &&
      (C::kFloat8 || (C::kStagesQ > 1 && Layout::kPanelsV <= Layout::kPanelsK));
  static_assert(kCanStage || !C::kStoresBoxes);
  // Where a warp's rows are: among those of the warpgroup, or alone.
  static constexpr int kStagedPanel = C::kFloat8 ? 16 * 128 : 64 * 128;
  static ATTN_DEVICE int staged_row() { return C::kFloat8 ? 0 : warp_row(); }
  ATTN_DEVICE void write_staged(State& c, int slot, const RowEnds& ends, unsigned staging) const {
    if constexpr (C::kUsedQ) clear_unused_rows(c, tiles.own_at(slot));
    const bool finite = is_finite(c, ends);
    if constexpr (C::kFloat8) {
      if (C::kStoresBoxes && elect_one()) bulk_wait_read();
      __syncwarp();
    }
    stage_rows<Output, C::kHeadDimV>(c.o, ends.factor, staging, kStagedPanel, staged_row());
    const Own t = tiles.own_at(slot);
    if constexpr (C::kStoresBoxes) {
      const int row = t.w.row0 + 64 * tiles.consumer + warp_row();
      fence_proxy_async();
      __syncwarp();
      // Boxes that are written may end outside of the tensor, but not begin before it.
      if (elect_one() && (!Tiles::kEndAligned || row >= 0)) {
#pragma unroll
        for (int panel = 0; panel < Layout::kPanelsV; ++panel) {
          tma_store_4d(tiles.maps.o,
                       staging + static_cast<unsigned>(panel * kStagedPanel + staged_row() * 128),
                       64 * panel, row, t.w.head, t.w.sequence.batch);
        }
        bulk_commit();
      }
      write_lse(t, ends);
      if (!C::kFloat8 && elect_one()) bulk_wait_read();
    } else {
      write_lse(t, ends);
      const Own first{t.w, t.row - static_cast<int>(threadIdx.x % 32 / 4), true};
      char* const o = row_address(first, row_of(first, 0));
      copy_staged_rows<C::kHeadDimV>(staging, kStagedPanel, staged_row(), [&](int row) {
        const Row r = row_of({first.w, first.row + row, true}, 0);
        return RowPlace{C::kGroup > 1 ? row_address(first, r)
                                      : o + kBytesOf<Output> * row * tiles.p.o_strides.row,
                        r.exists};
      });
    }
    give_back(slot, finite);
  }
};

}  // namespace attn::device
