// P and dS of 64 queries and a tile of keys in the Hopper backward kernel: the work of its score
// warpgroup between products.
#pragma once

#include "device.cuh"
#include "expr/visible_keys.cuh"
#include "kernels/backward_sm90/kept_bits.cuh"
#include "kernels/backward_sm90/tiles.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "softmax/far_rows.cuh"
#include "tile/score_vectors.cuh"

namespace attn::device {

// A number for each of a thread's two rows.
struct BackwardRows {
  float value[2];
};
// What a score warpgroup keeps of a step.
template <class C>
struct BackwardSm90State {
  using Layout = BackwardSm90Layout<C>;
  using Kept = BackwardSm90KeptBits<C>;
  float s[Layout::kKeys / 2];   // S, then P, or P dT/dS
  float dp[Layout::kKeys / 2];  // dP
  float dq[Layout::Order::columns(0) / 2];
  unsigned ds[Layout::kKeys / 4];
  BackwardRows lse, d;
  int flags;                     // of the step
  unsigned q, d_o;               // descriptors of its Q and dO
  typename Kept::Words kept;     // what dropout keeps
  typename Kept::Random random;  // where it is drawn here
};

template <class C, class Expressions, class Slope>
struct BackwardSm90Scores {
  using Tiles = BackwardSm90Tiles<C>;
  using Layout = typename Tiles::Layout;
  using Element = typename Tiles::Element;
  using State = BackwardSm90State<C>;
  using Rows = BackwardRows;
  static constexpr int kKeys = Tiles::kKeys;
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr float kSmallTanh = 1.f / 16;  // multiples for which most scores are small
  static_assert(Tiles::kQueries == 64);

  const Tiles& tiles;
  const Expressions& e;
  const Slope& slope;

  ATTN_DEVICE int warp() const { return static_cast<int>(tiles.thread / 32); }
  ATTN_DEVICE int first_row() const {
    return warp() * 16 + static_cast<int>(tiles.thread % 32 / 4);
  }
  ATTN_DEVICE int first_column() const { return 2 * static_cast<int>(tiles.thread % 4); }
  ATTN_DEVICE Rows load_rows(int at, int stage) const {
    const unsigned row =
        tiles.shared + static_cast<unsigned>(at + stage * Layout::kRows + 4 * first_row());
    return {{__int_as_float(load_shared_word(row)), __int_as_float(load_shared_word(row + 32))}};
  }

  // D, or the share of it that dropout keeps (differentiate).
  ATTN_DEVICE Rows load_d(int stage) const {
    Rows d = load_rows(Layout::kDAt, stage);
    if constexpr (C::kScalesLate) {
      const float kept = fmaf(static_cast<float>(tiles.p.dropout_threshold), -0x1p-15f, 1.f);
      d.value[0] *= kept;
      d.value[1] *= kept;
    }
    return d;
  }

  // Address of this thread's row of the matrices that stmatrix writes first; matrices of 16 keys
  // further on lie at this address with bits 5 and 6 changed.
  ATTN_DEVICE unsigned matrix_address(int at) const {
    const unsigned lane = tiles.thread % 32, row = lane % 16;
    return tiles.shared + static_cast<unsigned>(at + warp() * 2048) + row * 128 +
           ((lane / 16 ^ (row & 7)) << 4);
  }
  // Puts words of 16 keys, the k-th, to their place.
  static ATTN_DEVICE void put(unsigned matrices, int k, const unsigned (&words)[4]) {
    store_matrices((matrices ^ static_cast<unsigned>(k % 4 * 32)) +
                       static_cast<unsigned>(k / 4 * Layout::kRowPanel),
                   words);
  }

  // S becomes -inf where a query does not see a key, and NaN elsewhere in a row whose LSE is NaN,
  // which is 0 then: P of hidden keys is 0 in any case.
  ATTN_DEVICE void apply_mask(State& c, unsigned n) const {
    const BackwardStep t = tiles.step(n);
    const int first = t.key0 + first_column();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = t.query0 + first_row() + 8 * i;
      VisibleKeys keys = visible_keys(e, first, query, t.batch, t.head_q, t.length_q, t.length_k);
      if (query >= t.length_q) keys.last = -1;
      const float lse = c.lse.value[i];
      const float spoiled = lse != lse ? lse : 0;
      if (lse != lse) c.lse.value[i] = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 4; ++j) {
        const int step = j / 2 * 8 + j % 2;
        bool visible = step <= keys.last;
        if constexpr (Expressions::kMaskFirst) visible = visible & (step >= keys.first);
        if constexpr (Expressions::kMaskRest) {
          visible = visible &&
                    e.mask_rest(query, first + step, t.batch, t.head_q, t.length_q, t.length_k);
        }
        float& x = c.s[j / 2 * 4 + 2 * i + j % 2];
        x = visible ? x + spoiled : minus_infinity();
      }
    }
  }

  // S <- tanh(multiple S), what the score and its derivative are made of. By a polynomial where all
  // scores of a warp are small.
  ATTN_DEVICE void take_tanh(State& c) const {
    const float multiple = tiles.p.scale * Slope::kTanhMultiple;
    if constexpr (Slope::kTanhMultiple <= kSmallTanh) {
      constexpr SmallTanh kTanh = SmallTanhOf<ATTN_PRECISE_MATH>::kValue;
      constexpr float kRange2 = (kTanh.least - kTanh.first) / kTanh.second;  // of the argument
      constexpr int kSums = 8;
      float squares[kSums] = {};  // none of their scores is larger
#pragma unroll
      for (int at = 0; at < kKeys / 2; ++at) {
        squares[at % kSums] = fmaf(c.s[at], c.s[at], squares[at % kSums]);
      }
      bool small = multiple > 0;
#pragma unroll
      for (const float x : squares) small = small & (x * multiple * multiple <= kRange2);
      if (__all_sync(~0u, small)) {
        // tanh(m s) = s p(s) with m in p, or s (p(s)^2 + rest) with its root.
        const float root = kTanh.rest == 0 ? multiple : mufu::square_root(multiple);
        const SmallTanh tanh{kTanh.first * root, kTanh.second * root * multiple * multiple,
                             kTanh.rest * multiple, 0};
        int room = 0;
#pragma unroll
        for (int at = 0; at < kKeys / 2; ++at) {
          c.s[at] *= fast::small_tanh_ratio(c.s[at], tanh, room);
        }
        return;
      }
    }
#pragma unroll
    for (int at = 0; at < kKeys / 2; ++at) {
      c.s[at] = slope::attn_tanh(c.s[at] * multiple);
    }
  }

  // What a step's scores read of buffers for 32 keys at a time. A thread loads its own pairs: the
  // exchange of transposed vectors takes longer here than the loads that it saves.
  using Vectors = ScoreVectors<Expressions, kKeys, false, 2>;
  static constexpr bool kLoadsVectors = Expressions::kVectorWords > 0 && !Slope::kIsOfTanh;

  // Called before the k-th 16 keys.
  ATTN_DEVICE void take_vectors(Vectors& vectors, const BackwardStep& t, int k) const {
    if constexpr (kLoadsVectors) {
      using OfRow = typename Expressions::Vectors;
      const auto load = [&](OfRow& of_row, int i, int first) {
        e.template load_vectors<false>(of_row, t.query0 + first_row() + 8 * i, t.key0 + first,
                                       t.batch, t.head_q, t.length_q, t.length_k);
      };
      if (k % 2 == 0) vectors.take(e, k / 2, load);
    }
  }

  // The largest scores of rows that are far, and 0 of others. LSE becomes what goes with them.
  ATTN_DEVICE Rows take_references(State& c, const BackwardStep& t) const {
    Rows m;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = t.query0 + first_row() + 8 * i;
      const auto row = reference_of<C>(tiles.p, c.lse.value[i], t.batch, t.head_q, query);
      m.value[i] = row.m;
      c.lse.value[i] = row.lse2;
    }
    return m;
  }

  // P of S = x; x becomes P, or P dT/dS, as dS needs it. Never above 1 where there is a score,
  // but where that is a softcap by 2^-9 in f16 and 2^-6 in bf16.
  // m: what is subtracted from scores where rows may be far.
  ATTN_DEVICE float probability(float& x, float m, float lse2, int at, const BackwardStep& t,
                                const Vectors& vectors) const {
    float y = x, gradient = 1.f;
    if constexpr (Slope::kIsOfTanh) {
      const int query = t.query0 + first_row() + at / 2 % 2 * 8;
      const int key = t.key0 + first_column(), step = at / 4 * 8 + at % 2;
      float of_tanh = slope.of_tanh(x, query, key, t.batch, t.head_q, t.length_q, t.length_k, step);
      if constexpr (C::kFarRows) of_tanh -= m;
      y = fmaf(of_tanh, Slope::kTanhFactor * kLog2E, -lse2);
      if constexpr (!Slope::kIsBounded) y = -max_or_nan(-y, 0.f);
      gradient = Slope::kTanhSlope * fma_saturated(-x, x, 1.f);  // 0 where x is -inf
    } else if constexpr (Expressions::kHasScore) {
      const int query = t.query0 + first_row() + at / 2 % 2 * 8;
      const int key = t.key0 + first_column(), step = at / 4 * 8 + at % 2;
      float score;
      if constexpr (kLoadsVectors) {
        score = vectors.score(e, at, x, query, key, t.batch, t.head_q, t.length_q, t.length_k);
      } else {
        score = e.score(x, query, key, t.batch, t.head_q, t.length_q, t.length_k, step);
      }
      if constexpr (C::kFarRows) score -= m;
      y = fmaf(score, Expressions::kScoreFactor * kLog2E, -lse2);
      y = x == minus_infinity() ? x : y > 0 ? 0.f : y;
      if constexpr (Slope::kHasSlope) {
        gradient = slope.slope(x * tiles.p.scale, query, key + step, t.batch, t.head_q, t.length_q,
                               t.length_k);
      }
    } else {
      y = fmaf(x, tiles.p.scale_log2, -lse2);
    }
    const float probable = exp2_approximate(y);
    x = probable;
    if constexpr (Slope::kIsOfTanh) {
      x = probable * gradient;
    } else if constexpr (Slope::kHasSlope) {
      x = probable == 0 ? 0.f : probable * gradient;
    }
    return probable;
  }

  // S <- P, also to shared memory. between(k): called before the k-th 16 keys.
  template <class Between>
  ATTN_DEVICE void exponentiate(State& c, unsigned n, int to, Between between) const {
    BackwardStep t{};
    if constexpr (Expressions::kHasScore || C::kDropout) t = tiles.step(n);
    const unsigned matrices = matrix_address(to);
    const BackwardSm90KeptBits<C> kept{tiles};
    if constexpr (C::kDropout) c.kept = kept.take(n);
    [[maybe_unused]] Vectors vectors;
    [[maybe_unused]] Rows m{};
    if constexpr (C::kFarRows) m = take_references(c, t);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      between(k);
      take_vectors(vectors, t, k);
      if constexpr (C::kDropout) {
        if (k % 4 == 0) kept.draw_late(c.random, c.kept, t, k / 4);
      }
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float probable[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = 8 * k + 2 * j + i;
          probable[i] = probability(c.s[at], m.value[j % 2], c.lse.value[j % 2], at, t, vectors);
        }
        words[j] = Element::pack(probable[0], probable[1]);
        if constexpr (C::kDropout) words[j] &= KeptBits::halves(c.kept.of[k / 4], 4 * k % 16 + j);
      }
      put(matrices, k, words);
    }
  }

  // dS = P dT/dS (Z dP - D), to shared memory and as operand of dQ's product. kScalesLate:
  // dropout's factor is left to who stores dQ and dK: Z is 0 or 1 here, and D divided by it, so
  // that no score is multiplied.
  ATTN_DEVICE void differentiate(State& c, bool mixed, int to) const {
    if constexpr (C::kDropout) {
#pragma unroll
      for (int word = 0; word < kKeys / 64; ++word) {
#pragma unroll
        for (int bit = 0; bit < 32; ++bit) {  // in this order a few instructions test all
          float& x = c.dp[32 * word + KeptBits::score_of(bit)];
          const float kept = C::kScalesLate ? x : x * tiles.p.dropout_scale;
          x = (c.kept.of[word] >> bit & 1) != 0 ? kept : 0.f;
        }
      }
    }
    if (mixed) {  // 0 takes nothing of dO, V and D
#pragma unroll
      for (int at = 0; at < kKeys / 2; ++at) {
        c.dp[at] = c.s[at] == 0 ? 0.f : c.dp[at] - c.d.value[at / 2 % 2];
      }
      c.d = {};
    }
    const unsigned matrices = matrix_address(to);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 8 * k + 2 * j;
        c.ds[4 * k + j] = Element::pack(c.s[at] * (c.dp[at] - c.d.value[j % 2]),
                                        c.s[at + 1] * (c.dp[at + 1] - c.d.value[j % 2]));
      }
      const unsigned words[4] = {c.ds[4 * k], c.ds[4 * k + 1], c.ds[4 * k + 2], c.ds[4 * k + 3]};
      put(matrices, k, words);
    }
  }
};

}  // namespace attn::device
