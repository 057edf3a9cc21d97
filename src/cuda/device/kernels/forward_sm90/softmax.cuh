// The softmax of a consumer of the Hopper forward kernel: S of a block of keys becomes P, and P the
// operand of the next product.
#pragma once

#include "device.cuh"
#include "expr/visible_keys.cuh"
#include "kernels/forward_sm90/products.cuh"
#include "softmax/dropout.cuh"
#include "tile/score_vectors.cuh"
#include "tile/warp_scores.cuh"

namespace attn::device {

template <class C, class Expressions>
struct ForwardSm90Softmax {
  using Tiles = ForwardSm90Tiles<C, Expressions>;
  using State = ForwardSm90State<C>;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using Own = typename Tiles::Own;
  using Place = typename Tiles::Place;
  using Products = ForwardSm90Products<C, Expressions>;

  const Tiles& tiles;

  static constexpr float kLog2E = 1.4426950408889634f;
  // What scores are multiplied by to be exponents of 2.
  ATTN_DEVICE float exponent_scale(const State& c) const {
    if constexpr (Expressions::kHasScore) return Expressions::kScoreFactor * kLog2E;
    return C::kFloat8 ? tiles.p.scale_log2 * fabsf(c.float8.scale) : tiles.p.scale_log2;
  }
  // With 8-bit floats: S becomes that of Q and K times their scales, but for a positive factor that
  // exponent_scale() has.
  ATTN_DEVICE void scale_scores(State& c) const {
    if constexpr (C::kFloat8) {
      if (Expressions::kHasScore || c.float8.scale < 0) {
        const float factor = Expressions::kHasScore ? c.float8.scale : -1.f;
#pragma unroll
        for (int i = 0; i < C::kBlockN / 2; ++i) c.s[i] *= factor;
      }
    }
  }

  // What is added to the key of a column, where keys are not in a row.
  static ATTN_DEVICE int gap(Place block, int column) {
    if constexpr (C::kGathers) return block.gap(column);
    return 0;
  }

  // Calls f(score, i, query, head, key, step) for each score of row i of the two of a block, whose
  // key is key + step; step is a constant where it is inlined. kByRows: all scores of a row, then
  // those of the other, as the exponentials go, so that few values are in between; else by keys,
  // which suits what both rows share of a key.
  template <bool kByRows, class F>
  ATTN_DEVICE void for_each_score(State& c, const Own& t, Place block, F f) const {
    const int key = block * C::kBlockN + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < C::kBlockN / 2; ++n) {
      const int i = kByRows ? n / (C::kBlockN / 4) : n % 2;
      const int column = kByRows ? n % (C::kBlockN / 4) : n / 2;  // of the thread's in a row
      const int row = t.row + 8 * i;
      const int head = Tiles::query_head(t.w, row);
      float& score = c.s[column / 2 * 4 + 2 * i + column % 2];
      const int step = column / 2 * 8 + column % 2;
      f(score, i, row / C::kGroup, head, key + gap(block, step), step);
    }
  }
  ATTN_DEVICE void apply_score(State& c, const Own& t, Place block) const {
    if constexpr (Expressions::kVectorWords > 0) {
      apply_vectors(c, t, block);
    } else if constexpr (Expressions::kHasScore) {
      const Sequence& q = t.w.sequence;
      for_each_score<!Expressions::kScoreLoads>(
          c, t, block, [&](float& x, int, int query, int head, int key, int step) {
            x = tiles.e.score(x, query, key, q.batch, head, q.length_q, q.length_k, step);
          });
    }
  }
  // The same, where elements of buffers are loaded for 32 keys at a time.
  ATTN_DEVICE void apply_vectors(State& c, const Own& t, Place block) const {
    using Vectors = typename Expressions::Vectors;
    const Sequence& q = t.w.sequence;
    const int key = block * C::kBlockN, own = key + 2 * static_cast<int>(threadIdx.x % 4);
    const auto query = [&](int i) { return (t.row + 8 * i) / C::kGroup; };
    const auto head = [&](int i) { return Tiles::query_head(t.w, t.row + 8 * i); };
    const auto load = [&](Vectors& vectors, int i, int first) {
      tiles.e.template load_vectors<true>(vectors, query(i), key + first, q.batch, head(i),
                                          q.length_q, q.length_k);
    };
    // More words than four of a row and 32 keys would be spilled.
    constexpr int kAhead = Expressions::kVectorWords > 4 ? 1 : 2;
    ScoreVectors<Expressions, C::kBlockN, true, kAhead> vectors;
#pragma unroll
    for (int r = 0; r < C::kBlockN / 2; ++r) {
      if (r % 16 == 0) vectors.take(tiles.e, r / 16, load);
      const int i = r / 2 % 2;
      c.s[r] = vectors.score(tiles.e, r, c.s[r], query(i), own, q.batch, head(i), q.length_q,
                             q.length_k);
    }
  }
  ATTN_DEVICE void apply_mask(State& c, const Own& t, Place block) const {
    const Sequence& q = t.w.sequence;
    // Of row i, for the columns that have keys in a row with those of `column`.
    const auto keys_of = [&](int i, int column) {
      const int row = t.row + 8 * i;
      const int head = Tiles::query_head(t.w, row);
      return visible_keys(
          tiles.e, block * C::kBlockN + gap(block, column) + 2 * static_cast<int>(threadIdx.x % 4),
          row / C::kGroup, q.batch, head, q.length_q, q.length_k);
    };
    VisibleKeys keys[C::kGathers ? 4 : 2] = {keys_of(0, 0), keys_of(1, 0)};
    if constexpr (C::kGathers) {
      keys[2] = keys_of(0, kGatheredKeys);
      keys[3] = keys_of(1, kGatheredKeys);
    }
    for_each_score<false>(
        c, t, block, [&](float& x, int i, int query, int head, int first, int step) {
          const VisibleKeys& own = keys[C::kGathers ? step / kGatheredKeys * 2 + i : i];
          bool visible = step <= own.last;
          if constexpr (Expressions::kMaskFirst) visible = visible & (step >= own.first);
          if constexpr (Expressions::kMaskRest) {
            visible = visible &
                      tiles.e.mask_rest(query, first + step, q.batch, head, q.length_q, q.length_k);
          }
          x = visible ? x : minus_infinity();
        });
  }

  // What the scores of each of a thread's two rows share of their exponents. Loaded before S is
  // there, so that no exponential waits for it. Rows 8 apart are of one head in groups of up to 8.
  struct RowsShared {
    static constexpr int kRows = C::kGroup > 8 || Expressions::kRowSharesQuery ? 2 : 1;
    typename Expressions::RowShared row[kRows];
  };
  ATTN_DEVICE RowsShared share_rows(const Own& t) const {
    if constexpr (Expressions::RowShared::kCount == 0) {
      return {};
    } else {
      const Sequence& q = t.w.sequence;
      RowsShared shared_by;
#pragma unroll
      for (int i = 0; i < RowsShared::kRows; ++i) {
        const int row = t.row + 8 * i;
        const int head = Tiles::query_head(t.w, row);
        tiles.e.share_row(shared_by.row[i], row / C::kGroup, q.batch, head, q.length_q, q.length_k);
        pin(shared_by.row[i].value);
      }
      return shared_by;
    }
  }
  // S <- P, and P as the operand of the next product. O += P V of the block before goes on beside
  // the exponentials of the first row, and packing beside those of the second. kAgain: O is waited
  // for already; a warp may be alone here.
  template <bool kMasked, bool kAgain, bool kReleaseV = false, class Exponent>
  ATTN_DEVICE bool exponentiate(State& c, Exponent exponent) const {
    const auto wait_for_o = [&](float p) {
      if constexpr (kAgain) return;
      // The assembler would wait first and then compute. It keeps a wait behind the look at a
      // barrier, and that behind `p`: a sign that is never there is added to the address.
      const unsigned zero = __float_as_uint(fmaxf(p, 0.f)) >> 31;
      const auto k = tiles.k_ring();
      c.k_ready = mbarrier_try(k.full(c.blocks + 1) + zero, k.parity(c.blocks + 1));
      wgmma_wait<0>();
      Products::pin_product(c);
      pin(c.s);
      if constexpr (kReleaseV) tiles.v_ring().release(c.blocks - 1);
    };
    if constexpr (C::kFloat8) {
      unsigned full = 0;
      const auto pack = [&](int k) {
        if (k % 4 < 2) return;  // with the pair of this row 8 columns on
        const int word = k / 4 * 2 + k % 2;
        c.probability[word] = packed_float8(c.s + word / 2 * 8 + word % 2 * 2);
        full |= c.probability[word] + kBeforeFull;
      };
      const bool good =
          c.softmax.template exponentiate<kMasked, !Tiles::kJudgesLate, !C::kSumsByProduct>(
              c.s, exponent, wait_for_o, pack);
      if constexpr (!kMasked) lower_float8(c, full);
      return good;
    } else {
      const auto pack = [&](int k) {
        c.probability[k] = Element::pack(c.s[2 * k], c.s[2 * k + 1]);
      };
      return c.softmax.template exponentiate<kMasked, !Tiles::kJudgesLate, true>(c.s, exponent,
                                                                                 wait_for_o, pack);
    }
  }
  // S <- P of a block that needs no mask, with the references as they are. Returns whether P is
  // good, the same answer in the whole warp; `large` becomes whether it is not because some score
  // is too large for the polynomial of a tanh.
  ATTN_DEVICE bool keep(State& c, const Own& t, const RowsShared& shared_by, Place block,
                        bool& large) const {
    if constexpr (Expressions::kHasExponent && !C::kMaxLogit) {
      const Sequence& q = t.w.sequence;
      const int key = block * C::kBlockN + 2 * static_cast<int>(threadIdx.x % 4);
      int least = 0x7fffffff, even = 0;
      const auto exponent = [&](float x, float offset, int i, int j) {
        const int row = t.row + 8 * i;
        const int head = Tiles::query_head(t.w, row);
        const int step = j / 2 * 8 + j % 2;
        int room = 0x7fffffff;
        const float y = tiles.e.exponent(shared_by.row[RowsShared::kRows == 2 ? i : 0], offset,
                                         room, x, row / C::kGroup, key + gap(block, step), q.batch,
                                         head, q.length_q, q.length_k, step);
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
      const bool good = exponentiate<false, false, Tiles::kHasPlainRounds>(c, exponent);
      if constexpr (Expressions::kHasSmallTanh) {
        large = __any_sync(~0u, least < __float_as_int(tiles.e.small_tanh.least));
      }
      return good && !large;
    } else {
      apply_score(c, t, block);
      if constexpr (C::kMaxLogit) c.softmax.see(c.s);
      const float scale = exponent_scale(c);
      return exponentiate<false, false, Tiles::kHasPlainRounds>(
          c, [&](float x, float offset, int, int) { return fmaf(x, scale, offset); });
    }
  }

  // S <- P with new references. Returns whether one is far, the same answer in the whole warp.
  template <bool kAgain>
  ATTN_DEVICE bool raise(State& c, const Own& t, Place block, bool mixed, float (&alpha)[2]) const {
    // The other way to compute P begins with the same scores. The compiler would take them out of
    // both; left apart, scores and exponentials overlap there.
    if constexpr (Expressions::kHasScore && !Expressions::kScoreLoads) pin(c.s);
    apply_score(c, t, block);
    if (mixed) apply_mask(c, t, block);
    if constexpr (C::kMaxLogit) c.softmax.see(c.s);
    const float scale = exponent_scale(c);
    c.softmax.template raise<Tiles::kFar, Tiles::kJudgesLate, kRoom>(c.s, scale, alpha);
    if constexpr (!Tiles::kFar) {
      exponentiate<true, kAgain>(
          c, [&](float x, float offset, int, int) { return fmaf(x, scale, offset); });
      return false;
    } else {
      const bool far_row[2] = {is_far(c.softmax.r[0]), is_far(c.softmax.r[1])};
      const bool far = __any_sync(~0u, far_row[0] || far_row[1]);
      if (far) [[unlikely]] {
        subtract_far(c.s, c.softmax.r, c.softmax.m);
      }
      exponentiate<true, kAgain>(c, [&](float x, float offset, int i, int) {
        return fmaf(x, scale, far_row[i] ? 0.f : offset);
      });
      return far;
    }
  }

  // P as 8-bit floats, which end at 448. The largest of a row is near 2^kRoom when its reference is
  // set, so that it may grow by 2^1.8 before all of the block is multiplied again, and P of 2^-16
  // of it, half the smallest 8-bit float, is not yet rounded to 0.
  static constexpr int kRoom = C::kFloat8 ? 7 : 0;

  // A row's two pairs of 16 columns as four elements of an operand. An operand has 4 of 16 keys in
  // a row where an accumulator has two of 8 and two of the next 8, so the keys of V lie in the
  // accumulator's order (kernels/transpose_values.cuh).
  static ATTN_DEVICE unsigned packed_float8(const float* s) {
    return Float8E4M3::pack(s[0], s[1], s[4], s[5]);
  }
  // Added to such a word, the highest bits of its bytes say which elements are 448 or NaN.
  static constexpr unsigned kFull = 0x80808080, kBeforeFull = kFull - 0x7e7e7e7e;
  // Lowers P of rows that has outgrown 8-bit floats, by a power of two, with the references of what
  // follows. `full`: words of P plus kBeforeFull.
  static ATTN_DEVICE void lower_float8(State& c, unsigned full) {
    if (!__any_sync(~0u, (full & kFull) != 0)) [[likely]]
      return;
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = 0;
#pragma unroll
      for (int j = 0; j < C::kBlockN / 4; ++j) top = fmaxf(top, c.s[j / 2 * 4 + 2 * i + j % 2]);
      top = quad_max(top);
      factor[i] = c.softmax.lower_below(i, top, kRoom);
      if (top > largest_float()) c.float8.l[i] = top;
    }
    Products::scale(c, factor);
#pragma unroll
    for (int i = 0; i < C::kBlockN / 2; ++i) c.s[i] *= factor[i / 2 % 2];
#pragma unroll
    for (int k = 0; k < C::kBlockN / 8; ++k) {
      c.probability[k] = packed_float8(c.s + k / 2 * 8 + k % 2 * 2);
    }
  }

  // Computes a block once more from the product on, for this warp, where a score is far above all
  // before it. `q`: the place of Q. `l`: the sums of P before the block.
  ATTN_DEVICE bool redo(State& c, const Own& t, int q, Place block, const float (&l)[2],
                        float (&alpha)[2]) const {
    c.softmax.l[0] = l[0];
    c.softmax.l[1] = l[1];
    warp_scores<Element, Tiles::kStepsK>(
        c.s, tiles.shared + Layout::kQAt + q * Layout::kQ,
        static_cast<int>(threadIdx.x % 128 / 32) * 16, 8192,
        tiles.shared + Layout::kKAt + tiles.k_ring().place(c.blocks) * Layout::kK,
        Layout::kPanelBytes);
    return raise<true>(c, t, block, false, alpha);
  }

  // Moves the references of rows whose l has grown large, and what was made with them: O, l and P,
  // whose product is to come.
  ATTN_DEVICE void move_references(State& c) const {
    float factor[2];
    c.softmax.lower(factor);
    Products::scale(c, factor);
#pragma unroll
    for (int k = 0; k < C::kBlockN / 4; ++k) {
      c.probability[k] = Element::pack(c.s[2 * k] * factor[k % 2], c.s[2 * k + 1] * factor[k % 2]);
    }
  }

  // Sets the dropped elements of P to zero; l was summed before.
  ATTN_DEVICE void drop_elements(State& c, const Own& t, Place block) const {
    if constexpr (C::kDropout) {
      const ForwardParams& p = tiles.p;
      const auto dropout = dropout_of<C::kRngState>(p, t.w.sequence.batch);
      const auto row = [&](int i) {
        const int r = t.row + 8 * i;
        const int head = Tiles::query_head(t.w, r);
        return DropoutRow(dropout, static_cast<unsigned>(t.w.sequence.batch * p.heads_q + head),
                          static_cast<unsigned>(r / C::kGroup));
      };
      const DropoutRow<C::kRngState> rows[2] = {row(0), row(1)};
      drop<C::kDropsByProduct, Element>(c.probability, rows, block * C::kBlockN,
                                        static_cast<int>(threadIdx.x % 4));
    }
  }
};

}  // namespace attn::device
