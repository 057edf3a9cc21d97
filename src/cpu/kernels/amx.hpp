// bf16 operands for AMX: TDPBF16PS adds the product of 16 rows of 32 (A) and 16 pairs of rows of 16
// (B) to a 16 x 16 tile of f32 in 16 cycles, sixteen times what two FMAs a cycle do. S^T = K Q^T
// takes K as A, in its natural order, and Q^T as B, in pairs of dims; O^T += V^T P^T takes V^T,
// transposed when it is packed, and P^T in pairs of keys. Subnormal inputs count as zero; sums
// round to nearest even.
#pragma once

#include "cpu/kernels/bf16_pairs.hpp"
#include "cpu/kernels/peak.hpp"
#include "cpu/kernels/softmax.hpp"

namespace attn::cpu::ATTN_ISA {

inline constexpr int kTileRows = 16;
inline constexpr int kTileDepth = 32;  // bf16 elements of a 64-byte row of A, summed by one product
static_assert(kRows == 2 * kTileRows && kBlockK % kTileDepth == 0);

// The instructions, with the memory that they read and write declared to the compiler: the
// intrinsics of GCC 12 declare neither what a tile load nor all of what a configuration reads.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static void configure_tiles() {
  const TileConfig config;
  asm volatile("ldtilecfg %0" : : "m"(config));
}
static void release_tiles() { asm volatile("tilerelease"); }

template <int kTile>
ATTN_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "n"(kTile));
}
// 16 rows of 64 bytes, `stride` bytes apart.
template <int kTile>
ATTN_INLINE void load_tile(const void* at, std::ptrdiff_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(at), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
ATTN_INLINE void store_tile(void* at, std::ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(at), "r"(stride), "n"(kTile) : "memory");
}
template <int kSum, int kA, int kB>
ATTN_INLINE void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSum), "n"(kA), "n"(kB));
}

// Tiles 0 to 3 are a 2 x 2 block of sums, 4 and 5 its rows of A, 6 and 7 its columns of B: four
// loads (8 cycles each) feed four products (16 cycles each).
ATTN_INLINE void zero_sums() {
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
}
// [2 * kTileRows][ld] floats, the first 2 * kTileRows of each row.
ATTN_INLINE void load_sums(const float* at, std::ptrdiff_t ld) {
  const float* const lower = at + kTileRows * ld;
  load_tile<0>(at, 4 * ld);
  load_tile<1>(at + kTileRows, 4 * ld);
  load_tile<2>(lower, 4 * ld);
  load_tile<3>(lower + kTileRows, 4 * ld);
}
ATTN_INLINE void store_sums(float* at, std::ptrdiff_t ld) {
  float* const lower = at + kTileRows * ld;
  store_tile<0>(at, 4 * ld);
  store_tile<1>(at + kTileRows, 4 * ld);
  store_tile<2>(lower, 4 * ld);
  store_tile<3>(lower + kTileRows, 4 * ld);
}
ATTN_INLINE void add_four_products() {
  add_product<0, 4, 6>();
  add_product<1, 4, 7>();
  add_product<2, 5, 6>();
  add_product<3, 5, 7>();
}
// a: 2 * kTileRows rows `stride` bytes apart. b: [kTileDepth / 2][kRows] pairs.
ATTN_INLINE void add_products(const std::byte* a, std::ptrdiff_t stride, const std::uint32_t* b) {
  load_tile<4>(a, stride);
  load_tile<6>(b, 4 * kRows);
  load_tile<5>(a + kTileRows * stride, stride);
  load_tile<7>(b + kTileRows, 4 * kRows);
  add_four_products();
}

// k [keys][dim]; zero up to a multiple of kTileDepth keys, so that padding never holds a NaN.
static void pack_k_amx(const std::byte* const* row, int keys, int dim, CacheType source,
                       const float* scale, void* k) {
  const std::size_t bytes = 2 * static_cast<std::size_t>(dim);
  std::byte* out = static_cast<std::byte*>(k);
  int j = 0;
  for (; j < keys; ++j, out += bytes) {
    pack_row_bf16(row[j], dim, source, scale == nullptr ? 1.0f : scale[j], bytes, out);
  }
  for (; j % kTileDepth != 0; ++j, out += bytes) __builtin_memset(out, 0, bytes);
}

// v [keys / kTileDepth][dim][kTileDepth keys], zero past the last key.
static void pack_v_amx(const std::byte* const* row, int keys, int dim, CacheType source,
                       const float* scale, void* v) {
  std::uint32_t* out = static_cast<std::uint32_t*>(v);
  for (int first = 0; first < keys; first += kTileDepth) {
    for (int d0 = 0; d0 < dim; d0 += kLanes) {
      F pairs[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        pairs[i] = bit_cast<F>(load_pairs(row, scale, first + 2 * i, keys, d0, dim, source));
      }
      transpose(pairs);
      for (int d = 0; d < kLanes; ++d) store(out + d * kLanes, bit_cast<U>(pairs[d]));
      out += kLanes * kLanes;
    }
  }
}

static void scores_amx(const ScoreTile& tile, const void* k, int keys, int dim) {
  const std::uint32_t* q = static_cast<const std::uint32_t*>(tile.q_t);
  for (int key = 0; key < keys; key += kTileDepth) {
    const std::byte* rows = static_cast<const std::byte*>(k) + std::ptrdiff_t{key} * dim * 2;
    zero_sums();
    for (int d = 0; d < dim; d += kTileDepth) {
      add_products(rows + std::ptrdiff_t{d} * 2, dim * 2, q + d / 2 * kRows);
    }
    store_sums(tile.s + key * kRows, kRows);
  }
  if (tile.row_max != nullptr) row_max(tile.s, keys, tile.row_max);
}

// exp2() with a polynomial of degree 5, within 1.5e-7: the second product rounds P to 2^-9, and LSE
// is as good as its sum.
ATTN_INLINE F exp2_bf16(F y) {
  const F f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  F p = fma(set1(1.8671300724e-3f), f, set1(9.0170303159e-3f));
  p = fma(p, f, set1(5.5799913110e-2f));
  p = fma(p, f, set1(2.4016445015e-1f));
  p = fma(p, f, set1(6.9315131180e-1f));
  return _mm512_scalef_ps(fma(p, f, set1(1.0f)), y);
}

// Pairs (low: even key, high: odd key) of probabilities, halves rounded up: four operations, where
// the conversion takes two cycles. A NaN may come out as anything; l holds it.
ATTN_INLINE U round_pairs(F even, F odd) {
  const U low = (bit_cast<U>(even) + 0x8000u) >> 16;
  const U high = bit_cast<U>(odd) + 0x8000u;
  return bit_cast<U>(
      _mm512_mask_blend_epi16(0xaaaaaaaau, bit_cast<__m512i>(low), bit_cast<__m512i>(high)));
}

static void softmax_amx(float* s, int keys, float c, const float* row_max,
                        const std::uint32_t* keep, float* m, float* l, float* alpha, void* p) {
  std::uint32_t* out = static_cast<std::uint32_t*>(p);
  const F scale = set1(c);
  for (int v = 0; v < kVectors; ++v) {
    const int lane = v * kLanes;
    const F maximum = new_maximum(row_max + lane, c, m + lane, alpha + lane);
    F sum[4] = {};
    const auto probability = [&](int j, int u) __attribute__((always_inline)) {
      const F y = exp2_bf16((load(s + j * kRows + lane) - maximum) * scale);
      sum[u] += y;
      return keep == nullptr ? y : keep_lanes(keep[j] >> lane, y);
    };
    int j = 0;
    for (; j + 4 <= keys; j += 4) {
#pragma GCC unroll 2
      for (int u = 0; u < 4; u += 2) {
        const F even = probability(j + u, u);
        store(out + (j + u) / 2 * kRows + lane, round_pairs(even, probability(j + u + 1, u + 1)));
      }
    }
    for (; j < keys; j += 2) {
      const F even = probability(j, 0);
      const F odd = j + 1 < keys ? probability(j + 1, 1) : F{};
      store(out + j / 2 * kRows + lane, round_pairs(even, odd));
    }
    for (; j % kTileDepth != 0; j += 2) store(out + j / 2 * kRows + lane, U{});
    const F total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    store(l + lane, fma(load(l + lane), load(alpha + lane), total));
  }
}

constexpr std::ptrdiff_t kSumStride = 4 * kRows;  // bytes from one row of O^T or P^T to the next

// P^T stays in tiles 4 to 7 while 16 dims after the other pass by.
static void accumulate_amx(const OutputTile& tile, const void* v, int keys, int dim) {
  const float* alpha = tile.alpha;
  float* o_t = tile.o_t;
  if (alpha != nullptr) {
    F scale[kVectors];
    bool changes = false;  // after a few blocks the maxima hardly change
    for (int i = 0; i < kVectors; ++i) {
      scale[i] = load(alpha + i * kLanes);
      changes |= _mm512_cmp_ps_mask(scale[i], set1(1.0f), _CMP_NEQ_UQ) != 0;
    }
    for (int at = 0; changes && at < dim * kRows; at += kRows) {
      for (int i = 0; i < kVectors; ++i) {
        store(o_t + at + i * kLanes, load(o_t + at + i * kLanes) * scale[i]);
      }
    }
  }
  const std::uint32_t* pairs = static_cast<const std::uint32_t*>(tile.p);
  const std::byte* columns = static_cast<const std::byte*>(v);
  const std::ptrdiff_t half = std::ptrdiff_t{dim} * kTileDepth * 2;  // bytes of 32 keys of V^T
  load_tile<4>(pairs, kSumStride);
  load_tile<5>(pairs + kTileRows, kSumStride);
  const bool both = keys > kTileDepth;
  if (both) {
    load_tile<6>(pairs + kTileDepth / 2 * kRows, kSumStride);
    load_tile<7>(pairs + kTileDepth / 2 * kRows + kTileRows, kSumStride);
  }
  for (int d = 0; d < dim; d += kTileRows, columns += 2 * kTileRows * kTileDepth) {
    float* o = o_t + d * kRows;
    load_tile<0>(o, kSumStride);
    load_tile<1>(o + kTileRows, kSumStride);
    load_tile<2>(columns, 2 * kTileDepth);
    add_product<0, 2, 4>();
    add_product<1, 2, 5>();
    if (both) {
      load_tile<3>(columns + half, 2 * kTileDepth);
      add_product<0, 3, 6>();
      add_product<1, 3, 7>();
    }
    store_tile<0>(o, kSumStride);
    store_tile<1>(o + kTileRows, kSumStride);
  }
}

static double peak_flops_amx(double seconds) {
  constexpr int kSteps = 5000;
  double best = 1e30;
  configure_tiles();
  const double end = seconds_now() + seconds;
  do {
    const double start = seconds_now();
    for (int i = 0; i < kSteps; ++i) add_four_products();
    const double elapsed = seconds_now() - start;
    best = elapsed < best ? elapsed : best;
  } while (seconds_now() < end);
  release_tiles();
  return 2.0 * kTileRows * kTileRows * kTileDepth * 4 * kSteps / best * seconds;
}

}  // namespace attn::cpu::ATTN_ISA
