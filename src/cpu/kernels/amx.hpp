// bf16 operands for AMX: TDPBF16PS adds the product of 16 rows of 32 (A) and 16 pairs of rows of 16
// (B) to a 16 x 16 tile of f32 in 16 cycles, sixteen times what two FMAs a cycle do. S^T = K Q^T
// takes K as A, in its natural order, and Q^T as B, in pairs of dims; O^T += V^T P^T takes V^T,
// transposed when it is packed, and P^T in pairs of keys. Subnormal inputs count as zero; sums
// round to nearest even.
#pragma once

#include "cpu/kernels/bf16_pairs.hpp"
#include "cpu/kernels/peak.hpp"

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
// [kTileDepth][kRows] floats.
constexpr std::ptrdiff_t kSumStride = 4 * kRows;
ATTN_INLINE void load_sums(const float* at) {
  load_tile<0>(at, kSumStride);
  load_tile<1>(at + kTileRows, kSumStride);
  load_tile<2>(at + kTileRows * kRows, kSumStride);
  load_tile<3>(at + kTileRows * kRows + kTileRows, kSumStride);
}
ATTN_INLINE void store_sums(float* at) {
  store_tile<0>(at, kSumStride);
  store_tile<1>(at + kTileRows, kSumStride);
  store_tile<2>(at + kTileRows * kRows, kSumStride);
  store_tile<3>(at + kTileRows * kRows + kTileRows, kSumStride);
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
static void pack_k_amx(const std::byte* const* row, int keys, int dim, DType, void* k) {
  const std::size_t bytes = 2 * static_cast<std::size_t>(dim);
  std::byte* out = static_cast<std::byte*>(k);
  int j = 0;
  for (; j < keys; ++j, out += bytes) {
    if (row[j] == nullptr) {
      __builtin_memset(out, 0, bytes);
    } else {
      __builtin_memcpy(out, row[j], bytes);
    }
  }
  for (; j % kTileDepth != 0; ++j, out += bytes) __builtin_memset(out, 0, bytes);
}

// v [keys / kTileDepth][dim][kTileDepth keys], zero past the last key.
static void pack_v_amx(const std::byte* const* row, int keys, int dim, DType, void* v) {
  std::uint32_t* out = static_cast<std::uint32_t*>(v);
  for (int first = 0; first < keys; first += kTileDepth) {
    for (int d0 = 0; d0 < dim; d0 += kLanes) {
      F pairs[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int key = first + 2 * i;
        pairs[i] = bit_cast<F>(load_pairs(key < keys ? row[key] : nullptr,
                                          key + 1 < keys ? row[key + 1] : nullptr, d0, dim));
      }
      transpose(pairs);
      for (int d = 0; d < kLanes; ++d) store(out + d * kLanes, bit_cast<U>(pairs[d]));
      out += kLanes * kLanes;
    }
  }
}

static void scores_amx(const void* q_t, const void* k, int keys, int dim, float* s,
                       float* row_max_out) {
  const std::uint32_t* q = static_cast<const std::uint32_t*>(q_t);
  for (int key = 0; key < keys; key += kTileDepth) {
    const std::byte* rows = static_cast<const std::byte*>(k) + std::ptrdiff_t{key} * dim * 2;
    zero_sums();
    for (int d = 0; d < dim; d += kTileDepth) {
      add_products(rows + std::ptrdiff_t{d} * 2, dim * 2, q + d / 2 * kRows);
    }
    store_sums(s + key * kRows);
  }
  if (row_max_out != nullptr) row_max(s, keys, row_max_out);
}

static void softmax_amx(float* s, int keys, float c, const float* row_max,
                        const std::uint32_t* keep, float* m, float* l, float* alpha, void* p) {
  softmax_bf16(s, keys, c, row_max, keep, m, l, alpha, p);
  std::uint32_t* out = static_cast<std::uint32_t*>(p);
  for (int pair = (keys + 1) / 2; pair % (kTileDepth / 2) != 0; ++pair) {
    for (int v = 0; v < kVectors; ++v) store(out + pair * kRows + v * kLanes, U{});
  }
}

static void accumulate_amx(const void* p, const void* v, int keys, int dim, const float* alpha,
                           float* o_t) {
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
  for (int d = 0; d < dim; d += kTileDepth) {
    load_sums(o_t + d * kRows);
    for (int key = 0; key < keys; key += kTileDepth) {
      const std::byte* rows =
          static_cast<const std::byte*>(v) + (std::ptrdiff_t{key} * dim + d * kTileDepth) * 2;
      add_products(rows, 2 * kTileDepth, static_cast<const std::uint32_t*>(p) + key / 2 * kRows);
    }
    store_sums(o_t + d * kRows);
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
