// The backward pass on AMX tiles. Its products take what those of the forward pass do (amx.hpp):
// S^T and dP^T are scores with K and V as A; dQ^T += K^T dS^T is accumulate. Two more sum over the
// rows of Q blocks: dV += P^T dO and dK += dS^T Q take P^T and dS^T, [key][rows], as A, so that the
// 32 rows of a Q block are the depth of one product, and dO and Q as B, in pairs of rows.
//
// A pair is rows i and 16 + i, lane i of both vectors of a key: then a shift and a blend make the
// words of A. A sum does not mind the order of its terms.
#pragma once

#include "cpu/kernels/amx.hpp"

namespace attn::cpu::ATTN_ISA {

static_assert(kRows == kTileDepth && kVectors == 2);

// Word [i][d]: element d of row i, and above it that of row 16 + i; zero past count.
static void pack_row_pairs(const std::byte* const* row, int count, int dim, DType, void* x) {
  std::uint32_t* out = static_cast<std::uint32_t*>(x);
  for (int i = 0; i < kLanes; ++i) {
    const std::byte* low = i < count ? row[i] : nullptr;
    const std::byte* high = kLanes + i < count ? row[kLanes + i] : nullptr;
    for (int d = 0; d < dim; d += kLanes) {
      store(out + d * kTileRows + i * kLanes, load_pairs(low, high, d, dim));
    }
  }
}

// Tiles 0 to 3 sum 32 keys of 32 dims over all Q blocks before they are stored.
static void accumulate_rows_amx(const WeightedRows* block, int blocks, int keys, int dim,
                                float* g) {
  for (int d = 0; d < dim; d += 2 * kTileRows) {
    for (int key = 0; key < keys; key += kTileDepth) {
      float* const sums = g + std::ptrdiff_t{key} * dim + d;
      load_sums(sums, dim);
      for (int i = 0; i < blocks; ++i) {
        const std::uint32_t* t = static_cast<const std::uint32_t*>(block[i].t) + key * kLanes;
        const std::uint32_t* x = static_cast<const std::uint32_t*>(block[i].x) + d * kTileRows;
        load_tile<4>(t, 4 * kLanes);
        load_tile<6>(x, 4 * kLanes);
        load_tile<5>(t + kTileRows * kLanes, 4 * kLanes);
        load_tile<7>(x + kTileRows * kLanes, 4 * kLanes);
        add_four_products();
      }
      store_sums(sums, dim);
    }
  }
}

// Words of the upper halves: that of `low` below that of `high`.
ATTN_INLINE U join_halves(U low, U high) {
  const U shifted = low >> 16;
  return bit_cast<U>(
      _mm512_mask_blend_epi16(0xaaaaaaaau, bit_cast<__m512i>(shifted), bit_cast<__m512i>(high)));
}
ATTN_INLINE U add_half(F x) { return bit_cast<U>(x) + 0x8000u; }

// A NaN of another payload could round up to 0; this one stays a NaN. The table says what replaces
// a number of each class, 4 bits a class: 0 nothing, 3 the NaN, 8 zero. Quiet and signalling NaN
// are classes 0 and 1.
ATTN_INLINE F plain_nan(F x) { return _mm512_fixupimm_ps(x, x, _mm512_set1_epi32(0x33), 0); }
// The same, and 0 in place of what is above: of 1, +inf and other positive numbers, classes 3,
// 5, 7.
ATTN_INLINE F at_most_zero(F x) {
  constexpr std::uint32_t kTable = 0x80808033u;
  return _mm512_fixupimm_ps(x, x, _mm512_set1_epi32(static_cast<int>(kTable)), 0);
}

// exp2() with a polynomial of degree 4, within 3e-6, and exact at whole numbers: a row with one key
// has P = 1.
ATTN_INLINE F exp2_to_round(F y) {
  const F f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  F p = fma(set1(1.3426696882e-2f), f, set1(5.2242454141e-2f));
  p = fma(p, f, set1(2.4128021300e-1f));
  p = fma(p, f, set1(6.9304484129e-1f));
  return _mm512_scalef_ps(fma(p, f, set1(1.0f)), y);
}

// P of scores before it is rounded: e^(scale s - lse), and 1 above. The difference to LSE is taken
// before it is scaled, as in probabilities().
ATTN_INLINE F probability_to_round(F score, F scale, F lse) {
  return exp2_to_round(at_most_zero(_mm512_fmsub_ps(score, scale, lse)) * set1(1.44269504f));
}

// What softmax_gradient leaves out, with the same P to the bit: which of them a tile takes depends
// on rows and keys that are not finite, and others must not feel it.
static void probabilities_amx(const float* s, int keys, float scale, const float* lse, float* p) {
  const F factor = set1(scale);
  for (int i = 0; i < keys * kRows; i += kLanes) {
    const F score = load(s + i);
    const __mmask16 seen = _mm512_cmp_ps_mask(score, set1(-__builtin_inff()), _CMP_NEQ_UQ);
    store(p + i,
          _mm512_maskz_mov_ps(seen, probability_to_round(score, factor, load(lse + i % kRows))));
  }
}

// Where P and dS of a tile go, in the operand type.
struct RoundedTile {
  std::uint32_t *p, *ds, *ds_pairs;
};
// p, ds: [2 keys][vectors of a row].
ATTN_INLINE void store_keys(const RoundedTile& out, int key, const F (*p)[2], const F (*ds)[2]) {
  U x[2][2];
#pragma GCC unroll 2
  for (int k = 0; k < 2; ++k) {
    store(out.p + (key + k) * kLanes, join_halves(add_half(p[k][0]), add_half(p[k][1])));
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) x[k][v] = add_half(ds[k][v]);
    store(out.ds + (key + k) * kLanes, join_halves(x[k][0], x[k][1]));
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    store(out.ds_pairs + key / 2 * kRows + v * kLanes, join_halves(x[0][v], x[1][v]));
  }
}

// gradients(key, v, p, ds) for all vectors of all keys, whose lanes from count on count for zero.
template <class Gradients>
ATTN_INLINE void round_tile(int keys, const RoundedTile& out, const Gradients& gradients) {
  const auto pair = [&](int key, int count) __attribute__((always_inline)) {
    F p[2][2] = {}, ds[2][2] = {};
#pragma GCC unroll 2
    for (int k = 0; k < count; ++k) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) gradients(key + k, v, p[k][v], ds[k][v]);
    }
    store_keys(out, key, p, ds);
  };
  int key = 0;
  for (; key + 2 <= keys; key += 2) pair(key, 2);
  if (key < keys) {
    pair(key, 1);
    key += 2;
  }
  for (; key % kTileDepth != 0; key += 2) pair(key, 0);
}

// The lanes of vector v that hold rows below count.
ATTN_INLINE __mmask16 lanes_of_rows(int count, int v) {
  return static_cast<__mmask16>(((std::uint64_t{1} << count) - 1) >> (v * kLanes));
}

static void round_gradients_amx(const float* p, const float* ds, int keys, int count, void* p_rows,
                                void* ds_rows, void* ds_pairs) {
  const __mmask16 lanes[2] = {lanes_of_rows(count, 0), lanes_of_rows(count, 1)};
  const RoundedTile out{static_cast<std::uint32_t*>(p_rows), static_cast<std::uint32_t*>(ds_rows),
                        static_cast<std::uint32_t*>(ds_pairs)};
  round_tile(
      keys, out, [&](int key, int v, F& of_p, F& of_ds) __attribute__((always_inline)) {
        const int at = key * kRows + v * kLanes;
        of_p = plain_nan(_mm512_maskz_loadu_ps(lanes[v], p + at));
        of_ds = plain_nan(_mm512_maskz_loadu_ps(lanes[v], ds + at));
      });
}

static void softmax_gradient_amx(float* s, float* dp, int keys, int count, float scale,
                                 const float* lse, const float* delta, void* p_rows, void* ds_rows,
                                 void* ds_pairs) {
  const F of_lse[2] = {load(lse), load(lse + kLanes)};
  const F of_delta[2] = {load(delta), load(delta + kLanes)};
  if (any_nan(of_lse[0] + of_delta[0]) || any_nan(of_lse[1] + of_delta[1])) {
    // Hidden keys stay hidden and every NaN stays one: at leisure.
    probabilities_amx(s, keys, scale, lse, s);
    score_gradient(s, dp, keys, nullptr, 1.0f, delta, dp);
    round_gradients_amx(s, dp, keys, count, p_rows, ds_rows, ds_pairs);
    return;
  }
  const __mmask16 lanes[2] = {lanes_of_rows(count, 0), lanes_of_rows(count, 1)};
  const F factor = set1(scale);
  const RoundedTile out{static_cast<std::uint32_t*>(p_rows), static_cast<std::uint32_t*>(ds_rows),
                        static_cast<std::uint32_t*>(ds_pairs)};
  round_tile(
      keys, out, [&](int key, int v, F& of_p, F& of_ds) __attribute__((always_inline)) {
        const int at = key * kRows + v * kLanes;
        of_p = _mm512_maskz_mov_ps(lanes[v], probability_to_round(load(s + at), factor, of_lse[v]));
        const F gradient = load(dp + at) - of_delta[v];
        of_ds = _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(of_p, F{}, _CMP_NEQ_UQ), of_p, gradient);
      });
}

}  // namespace attn::cpu::ATTN_ISA
