// Products and softmax of a consumer of the Hopper forward kernel: 64 rows of Q.
#pragma once

#include "expr/visible_keys.cuh"
#include "kernels/forward_sm90/tiles.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "softmax/dropout.cuh"
#include "softmax/online.cuh"
#include "tile/accumulator.cuh"
#include "tile/warp_scores.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Scores : ForwardSm90Tiles<C, Expressions> {
  using Base = ForwardSm90Tiles<C, Expressions>;
  using Base::barrier, Base::consumer, Base::e, Base::p, Base::shared;
  using Base::kGroup, Base::kHasPlainRounds, Base::kJudgesLate, Base::kStepsK, Base::query_head;
  using typename Base::Element, typename Base::KeyRing, typename Base::Layout;
  using typename Base::Own, typename Base::QueryRing, typename Base::ValueRing;

  struct Consumer {
    float o[C::kHeadDimV / 2];
    float s[C::kBlockN / 2];
    unsigned probability[C::kBlockN / 4];
    OnlineSoftmax softmax;
    unsigned blocks = 0;   // whose S was computed so far
    bool k_ready = false;  // K of the next block was there when it was looked for
    // Tiles of Q that were released (high half) and tiles begun (low half) so far; each wraps in
    // its half, a multiple of the rings' lengths.
    unsigned counts = 0;
    __device__ __forceinline__ unsigned queries() const { return counts >> 16; }
    __device__ __forceinline__ unsigned tiles() const { return counts & 0xffff; }
    __device__ __forceinline__ void next_query() { counts += 0x10000; }
    __device__ __forceinline__ void next_tile() {
      counts = (counts & 0xffff0000) | ((counts + 1) & 0xffff);
    }
  };

  // Consumers take turns issuing products, so that one has its softmax while another multiplies.
  static constexpr int kTurnBarrier = 1;
  __device__ __forceinline__ void wait_turn() const {
    if constexpr (C::kTakeTurns) barrier_sync(kTurnBarrier + consumer, 256);
  }
  __device__ __forceinline__ void give_turn() const {
    if constexpr (C::kTakeTurns) {
      const int next = consumer + 1 == C::kConsumers ? 0 : consumer + 1;
      barrier_arrive(kTurnBarrier + next, 256);
    }
  }

  static __device__ __forceinline__ void pin_all(Consumer& c) {
    pin(c.o);
    pin(c.s);
    pin(c.probability);
  }

  __device__ __forceinline__ unsigned v_tile(const Consumer& c) const {
    return shared +
           static_cast<unsigned>(Layout::kVAt + ValueRing::stage(c.blocks - 1) * Layout::kV);
  }
  __device__ __forceinline__ unsigned q_descriptor(const Consumer& c) const {
    return descriptor_low(shared + Layout::kQAt + q_slot(c) * Layout::kQ, 0);
  }
  __device__ __forceinline__ unsigned k_descriptor(const Consumer& c) const {
    return descriptor_low(shared + Layout::kKAt + KeyRing::stage(c.blocks) * Layout::kK, 0);
  }
  // V of the block before: its P is ready.
  __device__ __forceinline__ unsigned v_descriptor(const Consumer& c) const {
    return descriptor_low(v_tile(c), Layout::kPanelBytes);
  }

  __device__ __forceinline__ void issue_qk(Consumer& c, unsigned q, unsigned k) const {
#pragma unroll
    for (int step = 0; step < kStepsK; ++step) {
      const int panel = step / 4, inside = step % 4 * 32;
      ProductSS<Element, C::kBlockN>::run(c.s, q + ((panel * 8192 + inside) >> 4),
                                          k + ((panel * Layout::kPanelBytes + inside) >> 4),
                                          step > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void issue_pv(Consumer& c, unsigned v, bool add) const {
#pragma unroll
    for (int step = 0; step < C::kBlockN / 16; ++step) {
      ProductRS<Element, C::kHeadDimV>::run(c.o, &c.probability[4 * step], v + ((step * 2048) >> 4),
                                            step > 0 || add);
    }
    wgmma_commit();
  }

  static constexpr float kLog2E = 1.4426950408889634f;
  // What scores are multiplied by to be exponents of 2.
  __device__ __forceinline__ float exponent_scale() const {
    return Expressions::kHasScore ? Expressions::kScoreFactor * kLog2E : p.scale_log2;
  }

  // Calls f(score, i, query, head, key, step) for each score of row i of the two of a block, whose
  // key is key + step; step is a constant where it is inlined. kByRows: all scores of a row, then
  // those of the other, as the exponentials go, so that few values are in between; else by keys,
  // which suits what both rows share of a key.
  template <bool kByRows, class F>
  __device__ __forceinline__ void for_each_score(Consumer& c, const Own& t, int block, F f) const {
    const int key = block * C::kBlockN + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < C::kBlockN / 2; ++n) {
      const int i = kByRows ? n / (C::kBlockN / 4) : n % 2;
      const int column = kByRows ? n % (C::kBlockN / 4) : n / 2;  // of the thread's in a row
      const int row = t.row + 8 * i;
      const int head = query_head(t.w, row);
      f(c.s[column / 2 * 4 + 2 * i + column % 2], i, row / kGroup, head, key,
        column / 2 * 8 + column % 2);
    }
  }
  __device__ __forceinline__ void apply_score(Consumer& c, const Own& t, int block) const {
    if constexpr (Expressions::kHasScore) {
      const Sequence& q = t.w.sequence;
      for_each_score<!Expressions::kScoreLoads>(
          c, t, block, [&](float& x, int, int query, int head, int key, int step) {
            x = e.score(x, query, key, q.batch, head, q.length_q, q.length_k, step);
          });
    }
  }
  __device__ __forceinline__ void apply_mask(Consumer& c, const Own& t, int block) const {
    const Sequence& q = t.w.sequence;
    const auto keys_of = [&](int i) {
      const int row = t.row + 8 * i;
      const int head = query_head(t.w, row);
      return visible_keys(e, block * C::kBlockN + 2 * static_cast<int>(threadIdx.x % 4),
                          row / kGroup, q.batch, head, q.length_q, q.length_k);
    };
    const VisibleKeys keys[2] = {keys_of(0), keys_of(1)};
    for_each_score<false>(
        c, t, block, [&](float& x, int i, int query, int head, int first, int step) {
          bool visible = step <= keys[i].last;
          if constexpr (Expressions::kMaskFirst) visible = visible & (step >= keys[i].first);
          if constexpr (Expressions::kMaskRest) {
            visible =
                visible & e.mask_rest(query, first + step, q.batch, head, q.length_q, q.length_k);
          }
          x = visible ? x : minus_infinity();
        });
  }

  // What the scores of each of a thread's two rows share of their exponents. Loaded before S is
  // there, so that no exponential waits for it. Rows 8 apart are of one head in groups of up to 8.
  struct RowsShared {
    static constexpr int kRows = kGroup > 8 || Expressions::kRowSharesQuery ? 2 : 1;
    typename Expressions::RowShared row[kRows];
  };
  __device__ __forceinline__ RowsShared share_rows(const Own& t) const {
    if constexpr (Expressions::RowShared::kCount == 0) {
      return {};
    } else {
      const Sequence& q = t.w.sequence;
      RowsShared shared_by;
#pragma unroll
      for (int i = 0; i < RowsShared::kRows; ++i) {
        const int row = t.row + 8 * i;
        const int head = query_head(t.w, row);
        e.share_row(shared_by.row[i], row / kGroup, q.batch, head, q.length_q, q.length_k);
        pin(shared_by.row[i].value);
      }
      return shared_by;
    }
  }
  // S <- P, and P as the operand of the next product. O += P V of the block before goes on beside
  // the exponentials of the first row, and packing beside those of the second. kAgain: O is waited
  // for already; a warp may be alone here.
  template <bool kMasked, bool kAgain, bool kReleaseV = false, class Exponent>
  __device__ __forceinline__ bool exponentiate(Consumer& c, Exponent exponent) const {
    const auto wait_for_o = [&](float p) {
      if constexpr (kAgain) return;
      // The assembler would wait first and then compute. It keeps a wait behind the look at a
      // barrier, and that behind `p`: a sign that is never there is added to the address.
      const unsigned zero = __float_as_uint(fmaxf(p, 0.f)) >> 31;
      c.k_ready = mbarrier_try(barrier(Layout::kFullK, KeyRing::stage(c.blocks + 1)) + zero,
                               KeyRing::parity(c.blocks + 1));
      wgmma_wait<0>();
      pin(c.o);
      pin(c.s);
      if constexpr (kReleaseV) this->arrive(Layout::kEmptyV, ValueRing::stage(c.blocks - 1));
    };
    const auto pack = [&](int k) { c.probability[k] = Element::pack(c.s[2 * k], c.s[2 * k + 1]); };
    return c.softmax.template exponentiate<kMasked, !kJudgesLate>(c.s, exponent, wait_for_o, pack);
  }
  // S <- P of a block that needs no mask, with the references as they are. Returns whether P is
  // good, the same answer in the whole warp; `large` becomes whether it is not because some score
  // is too large for the polynomial of a tanh.
  __device__ __forceinline__ bool softmax_kept(Consumer& c, const Own& t,
                                               const RowsShared& shared_by, int block,
                                               bool& large) const {
    if constexpr (Expressions::kHasExponent) {
      const Sequence& q = t.w.sequence;
      const int key = block * C::kBlockN + 2 * static_cast<int>(threadIdx.x % 4);
      int least = 0x7fffffff, even = 0;
      const auto exponent = [&](float x, float offset, int i, int j) {
        const int row = t.row + 8 * i;
        const int head = query_head(t.w, row);
        int room = 0x7fffffff;
        const float y =
            e.exponent(shared_by.row[RowsShared::kRows == 2 ? i : 0], offset, room, x, row / kGroup,
                       key, q.batch, head, q.length_q, q.length_k, j / 2 * 8 + j % 2);
        if constexpr (Expressions::kHasSmallTanh) {
          // Three are compared in one instruction.
          if (j % 2 == 0) {
            even = room;
          } else {
            least = __vimin3_s32(least, even, room);
          }
        }
        return y;
      };
      const bool good = this->template exponentiate<false, false, kHasPlainRounds>(c, exponent);
      if constexpr (Expressions::kHasSmallTanh) {
        large = __any_sync(~0u, least < __float_as_int(e.small_tanh.least));
      }
      return good && !large;
    } else {
      apply_score(c, t, block);
      const float scale = exponent_scale();
      return this->template exponentiate<false, false, kHasPlainRounds>(
          c, [&](float x, float offset, int, int) { return fmaf(x, scale, offset); });
    }
  }

  // S <- P with new references.
  template <bool kAgain>
  __device__ __forceinline__ void softmax_raised(Consumer& c, const Own& t, int block, bool mixed,
                                                 float (&alpha)[2]) const {
    // The other way to compute P begins with the same scores. The compiler would take them out of
    // both; left apart, scores and exponentials overlap there.
    if constexpr (Expressions::kHasScore && !Expressions::kScoreLoads) pin(c.s);
    apply_score(c, t, block);
    if (mixed) apply_mask(c, t, block);
    const float scale = exponent_scale();
    c.softmax.raise(c.s, scale, alpha);
    exponentiate<true, kAgain>(
        c, [&](float x, float offset, int, int) { return fmaf(x, scale, offset); });
  }

  // Moves the references of rows whose l has grown large, and what was made with them: O, l and P,
  // whose product is to come.
  __device__ __forceinline__ void move_references(Consumer& c) const {
    float factor[2];
    c.softmax.lower(factor);
#pragma unroll
    for (int i = 0; i < C::kHeadDimV / 2; ++i) c.o[i] *= factor[i / 2 % 2];
#pragma unroll
    for (int k = 0; k < C::kBlockN / 4; ++k) {
      c.probability[k] = Element::pack(c.s[2 * k] * factor[k % 2], c.s[2 * k + 1] * factor[k % 2]);
    }
  }

  // Sets the dropped elements of P to zero; l was summed before.
  __device__ __forceinline__ void drop_elements(Consumer& c, const Own& t, int block) const {
    if constexpr (C::kDropout) {
      const auto dropout = dropout_of<C::kRngState>(p);
      const auto row = [&](int i) {
        const int r = t.row + 8 * i;
        const int head = query_head(t.w, r);
        return DropoutRow(dropout, static_cast<unsigned>(t.w.sequence.batch * p.heads_q + head),
                          static_cast<unsigned>(r / kGroup));
      };
      const DropoutRow<C::kRngState> rows[2] = {row(0), row(1)};
      drop(c.probability, rows, block * C::kBlockN, static_cast<int>(threadIdx.x % 4));
    }
  }

  // Rows [first, rows) of a tile in shared memory become zeros before the warpgroup's next product.
  template <int kPanels>
  __device__ __forceinline__ void clear_rows(unsigned tile, int panel_bytes, int first,
                                             int rows) const {
    const int words = (rows - first) * 8;  // of 16 bytes, of a panel
    for (int panel = 0; panel < kPanels; ++panel) {
      for (int i = static_cast<int>(threadIdx.x % 128); i < words; i += 128) {
        store_shared(tile + static_cast<unsigned>(panel * panel_bytes + first * 128 + i * 16),
                     {0, 0, 0, 0});
      }
    }
    fence_proxy_async();
    barrier_sync(kTurnBarrier + C::kConsumers + consumer, 128);
  }
  // Rows of V from the used-th on are past the length and someone else's: they must not meet P = 0
  // as NaN.
  __device__ __forceinline__ void clear_tail(const Consumer& c, int used) const {
    if constexpr (C::kClearTail) {
      if (used >= C::kBlockN) return;
      clear_rows<Layout::kPanelsV>(v_tile(c), Layout::kPanelBytes, used, C::kBlockN);
    }
  }
  // So are rows of Q past the length. As zeros they do not decide for the rows beside them in a
  // warp whether the reference of the softmax is good. Rows before row 0 fill warps of their own.
  __device__ __forceinline__ void clear_queries(const Consumer& c, const Own& t) const {
    if constexpr (C::kPackedQ || C::kUsedQ) {
      const int used = t.w.sequence.length_q * kGroup - (t.w.row0 + 64 * consumer);
      if (used >= 64) return;
      clear_rows<Layout::kPanelsK>(shared + Layout::kQAt + q_slot(c) * Layout::kQ, 8192, used, 64);
    }
  }

  __device__ __forceinline__ int q_slot(const Consumer& c) const {
    return consumer * C::kStagesQ + QueryRing::stage(c.queries());
  }
};

}  // namespace attn::device
