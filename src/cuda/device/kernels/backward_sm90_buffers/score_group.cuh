// The warpgroup of the Hopper kernel of a bias's gradient that has 64 queries of each tile.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "kernels/backward_sm90_buffers/layout.cuh"
#include "kernels/backward_weights.cuh"
#include "ptx/wgmma.cuh"
#include "tile/accumulator.cuh"
#include "tile/matrix_descriptor.cuh"
#include "tile/row_product.cuh"
#include "tile/score_vectors.cuh"

namespace attn::device {

template <class C, class Expressions, class BufferGradients>
struct BackwardSm90BuffersGroup {
  using Layout = BackwardSm90BuffersLayout<C>;
  using Element = typename C::Element;
  using Weights = BackwardWeights<C, Expressions, BufferGradients>;
  using Step = BackwardSm90BuffersStep;
  static constexpr bool kTransposed = false;  // of vectors of a score
  // Where all steps of a tile read the same vectors, a thread loads those of 16-bit elements once a
  // tile.
  static constexpr bool kKeeps = C::kSameVectors && Expressions::kVectorWords == 4 && !C::kDropout;
  static constexpr int kVectorKeys = kKeeps ? C::kBlockN : C::kPartKeys;
  using Vectors =
      ScoreVectors<Expressions, kVectorKeys, kTransposed, kKeeps ? C::kBlockN / 32 - 1 : 1>;
  static constexpr int kSums = C::kBlockN / 2, kPartSums = C::kPartKeys / 2;
  static constexpr int kParts = C::kBlockN / C::kPartKeys;
  static_assert(BufferGradients::kElements == 1, "sums of one buffer fit registers");

  const BackwardSm90BuffersRing<C>& ring;
  const BackwardParams& p;
  const Expressions& e;
  const BufferGradients& gradients;
  int group;  // of the score groups

  struct State {
    float s[kPartSums], dp[kPartSums];
    float x[kPartSums], dot[kPartSums];  // scores by expression, and the S that they are of
    float elements[kSums][1];
    Vectors vectors;
  };
  // LSE in base 2, or what stands for it, and D, of a thread's two rows.
  struct Rows {
    RowReference reference[2];
    float d[2];
  };

  // Row i of the thread's two, counted in the tile.
  ATTN_DEVICE int row(int i) const {
    return 64 * group + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) +
           8 * i;
  }
  static ATTN_DEVICE int pair() { return 2 * static_cast<int>(threadIdx.x % 4); }

  // Of rows that are none of the sequence it reads others, which is of no use.
  ATTN_DEVICE Rows load_rows(const Step& step) const {
    const RowTerms* const all =
        p.row_terms + (static_cast<long long>(step.batch) * p.heads_q + step.head) * p.seqlen_q;
    Rows rows;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = max(min(step.query0 + row(i), step.length_q - 1), 0);
      const RowTerms terms = all[query];
      rows.reference[i] =
          reference_of<C>(p, lse_in_base_2<C>(terms.lse), step.batch, step.head, query);
      rows.d[i] = terms.d;
    }
    return rows;
  }

  // rows keys^T of a part's keys over kColumns columns, of the operands of use n.
  template <int kColumns>
  ATTN_DEVICE void issue(float (&to)[kPartSums], unsigned n, int part) const {
    const unsigned place = ring.place(n) >> 4;
    const unsigned rows = uniform(place + static_cast<unsigned>(group * 64 * 128 / 16));
    const unsigned keys =
        uniform(place + static_cast<unsigned>((Layout::kKeysAt + part * C::kPartKeys * 128) / 16));
    pin(to);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < divide_up<16>(kColumns); ++step) {
      const int panel = step / 4, inside = step % 4 * 32;
      ProductSS<Element, C::kPartKeys>::run(
          to, rows + descriptor_step(panel * Layout::kRowPanel + inside),
          keys + descriptor_step(panel * Layout::kKeyPanel + inside), step > 0);
    }
    wgmma_commit();
  }

  // Loads elements of a buffer from a key on.
  ATTN_DEVICE void take_vectors(State& c, int chunk, const Step& step, int first_key) const {
    using OfRow = typename Expressions::Vectors;
    c.vectors.take(e, chunk, [&](OfRow& vectors, int i, int first) {
      e.template load_vectors<kTransposed>(vectors, step.query0 + row(i), first_key + first,
                                           step.batch, step.head, step.length_q, step.length_k);
    });
  }

  ATTN_DEVICE void keep_vectors(State& c, const Step& step) const {
#pragma unroll
    for (int chunk = 0; chunk < C::kBlockN / 32; ++chunk) take_vectors(c, chunk, step, step.key0);
  }

  // The scores by expression of a part, from S, which is kept beside them for derivatives that need
  // it.
  template <int kPart>
  ATTN_DEVICE void take_scores(State& c, const Step& step) const {
    const int first_key = step.key0 + kPart * C::kPartKeys;
    constexpr int kFirst = kKeeps ? kPart * kPartSums : 0;  // register of the vectors
    const int vector_key = first_key - kFirst * 2;
#pragma unroll
    for (int at = 0; at < kPartSums; ++at) {
      const int query = step.query0 + row(at / 2 % 2);
      c.dot[at] = c.x[at] = c.s[at];
      if constexpr (Expressions::kVectorWords > 0) {
        if (!kKeeps && at % 16 == 0) take_vectors(c, at / 16, step, vector_key);
        c.x[at] = c.vectors.score(e, kFirst + at, c.s[at], query, vector_key + pair(), step.batch,
                                  step.head, step.length_q, step.length_k);
      } else if constexpr (Expressions::kHasScore) {
        c.x[at] = e.score(c.s[at], query, first_key + at / 4 * 8 + pair() + at % 2, step.batch,
                          step.head, step.length_q, step.length_k);
      }
    }
  }

  // Adds dT of a part, whose scores and dP the thread holds, to the sums. kPlain: the queries see
  // all keys, and no LSE is NaN, so that a score of -inf has P = 0 by itself.
  template <int kPart, bool kPlain>
  ATTN_DEVICE void add_part(State& c, const Step& step, const Rows& rows) const {
    const Sequence q{step.batch, step.length_q, step.length_k};
    const Weights weights{p, e, gradients, q, step.head};
    constexpr bool kHides = C::kScoreHides && !kPlain;
    const bool mixed = !kPlain && (step.flags & Step::kMixed) != 0;
    const int first_key = step.key0 + kPart * C::kPartKeys;
    unsigned long long kept = ~0ull;
    if constexpr (C::kDropout) {
      kept = weights.template draw<C::kPartKeys>(step.query0 + row(0), first_key);
    }
    PendingSum pending[BufferGradients::kLoads];  // of buffers that are summed in memory: none
#pragma unroll
    for (int at = 0; at < kPartSums; ++at) {
      const int i = at / 2 % 2, query = step.query0 + row(i);
      const int key = first_key + at / 4 * 8 + pair() + at % 2;
      const float probable = weights.template probability_of<kHides>(c.x[at], rows.reference[i]);
      float dot = c.dot[at], d_t = c.dp[at];
      weights.template weigh<false, true>(probable, dot, d_t, rows.d[i], query, key, mixed,
                                          (kept >> at & 1) != 0);
      gradients.add(pending, c.elements[kPart * kPartSums + at], d_t, c.dot[at] * p.scale, query,
                    key, step.batch, step.head, step.length_q, step.length_k);
    }
  }

  // Stores a row's keys by pairs where that is possible.
  ATTN_DEVICE void store_row(const State& c, int i, const ElementRow& to, int key) const {
    const auto address = reinterpret_cast<unsigned long long>(to.to);
    const int count =
        static_cast<int>(min(to.count, static_cast<long long>(key) + C::kBlockN)) - key;
    float* const from = to.to + key * to.stride;
    if (to.stride == 1 && address % sizeof(float2) == 0 && to.count % 2 == 0) {
#pragma unroll
      for (int j = 0; j < C::kBlockN / 8; ++j) {
        const int r = 4 * j + 2 * i;
        if (8 * j < count) {
          *reinterpret_cast<float2*>(from + 8 * j) =
              make_float2(c.elements[r][0], c.elements[r + 1][0]);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < C::kBlockN / 4; ++j) {
        const int at = j / 2 * 8 + j % 2;
        if (at < count) from[at * to.stride] = c.elements[j / 2 * 4 + 2 * i + j % 2][0];
      }
    }
  }
  ATTN_DEVICE void store(const State& c, const Step& step) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_row(c, i,
                gradients.row(step.split, step.query0 + row(i), step.batch, step.head,
                              step.length_q, step.length_k),
                step.key0 + pair());
    }
  }

  // The parts, from kPart on, of the step whose operands are uses n and n + 1, which it gives back.
  // S and dP of the first are on their way. Those of the next are asked for as soon as there is
  // room for them: S when the scores are taken, dP when dT is.
  template <int kPart>
  ATTN_DEVICE void add_parts(State& c, unsigned n, const Step& step, const Rows& rows,
                             bool plain) const {
    constexpr bool kLast = kPart == kParts - 1;
    wgmma_wait<1>();
    pin(c.s);
    if (kLast) ring.give_back(n);
    take_scores<kPart>(c, step);
    if constexpr (!kLast) issue<C::kHeadDim>(c.s, n, kPart + 1);
    wgmma_wait<kLast ? 0 : 1>();
    pin(c.dp);
    if (kLast) ring.give_back(n + 1);
    if (plain) {
      add_part<kPart, true>(c, step, rows);
    } else {
      add_part<kPart, false>(c, step, rows);
    }
    if constexpr (!kLast) {
      issue<C::kHeadDimV>(c.dp, n + 1, kPart + 1);
      add_parts<kPart + 1>(c, n, step, rows, plain);
    }
  }
  ATTN_DEVICE void add_step(State& c, unsigned n, const Step& step) const {
    const Rows rows = load_rows(step);
    issue<C::kHeadDim>(c.s, n, 0);
    ring.wait_full(n + 1);
    issue<C::kHeadDimV>(c.dp, n + 1, 0);
    const auto nan_in = [&](int i) { return rows.reference[i].lse2 != rows.reference[i].lse2; };
    const bool is_nan = nan_in(0) || nan_in(1);
    add_parts<0>(c, n, step, rows, !__any_sync(~0u, is_nan || (step.flags & Step::kMixed) != 0));
  }

  ATTN_DEVICE void run() const {
    unsigned n = 0;  // uses so far
    State c;
    while (true) {
      ring.wait_full(n);
      Step step = ring.step(n);
      if ((step.flags & Step::kEnd) != 0) return;
#pragma unroll
      for (auto& element : c.elements) element[0] = 0;
      if ((step.flags & Step::kUnseen) != 0) {
        ring.give_back(n++);
      } else {
        if constexpr (kKeeps) keep_vectors(c, step);
        while (true) {
          add_step(c, n, step);
          n += 2;
          if ((step.flags & Step::kLast) != 0) break;
          ring.wait_full(n);
          step = ring.step(n);
        }
      }
      store(c, step);
    }
  }
};

}  // namespace attn::device
