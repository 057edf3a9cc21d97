// A row of Q, K or V on its way to where append_kv writes it (src/cpu/append/verbs.hpp).
#pragma once

#include "cpu/append/verbs.hpp"
#include "cpu/kernels/convert.hpp"

namespace attn::cpu::ATTN_ISA {

inline constexpr int kMostRow = 576 + kLanes;  // kMaxHeadDim, in whole vectors

ATTN_INLINE F magnitude(F x) { return bit_cast<F>(bit_cast<U>(x) & 0x7fffffffu); }
// Lanes in a fixed order, so that a row's bits depend on nothing else.
ATTN_INLINE float sum_of_lanes(F x) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
}
ATTN_INLINE I lane_numbers() {
  I lane{};
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane;
}
ATTN_INLINE float largest_lane(F x) {
  for (int step = kLanes / 2; step > 0; step /= 2) x = max(x, shuffle(x, x, lane_numbers() ^ step));
  return x[0];
}

// x <- the row, and zeros up to a whole vector.
template <DType source>
ATTN_INLINE void load_append_row(const std::byte* from, int dim, float* x) {
  const int whole = dim / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) store(x + i, load_row(from, i, source));
  if (whole < dim) store(x + whole, load_row_part(from, whole, dim - whole, source));
}

ATTN_INLINE void norm_row(float* x, int dim, float eps, const float* weight) {
  F squares{};
  for (int i = 0; i < dim; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  const float factor = 1 / __builtin_sqrtf(sum_of_lanes(squares) / static_cast<float>(dim) + eps);
  const int whole = dim / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    const F y = load(x + i) * factor;
    store(x + i, weight == nullptr ? y : y * load(weight + i));
  }
  for (int i = whole; i < dim; ++i) {
    const float y = x[i] * factor;
    x[i] = weight == nullptr ? y : y * weight[i];
  }
}

// y_i = x_i cos_i + x_j sin_i, where j is the column that i is paired with.
ATTN_INLINE void rotate_halves(float* x, int rope_dim, const float* cos, const float* sin) {
  const int half = rope_dim / 2, whole = half / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    const F a = load(x + i), b = load(x + half + i);
    store(x + i, fma(a, load(cos + i), b * load(sin + i)));
    store(x + half + i, fma(b, load(cos + half + i), a * load(sin + half + i)));
  }
  for (int i = whole; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] + b * sin[i];
    x[half + i] = b * cos[half + i] + a * sin[half + i];
  }
}
ATTN_INLINE void rotate_interleaved(float* x, int rope_dim, const float* cos, const float* sin) {
  const I partner = lane_numbers() ^ 1;
  const int whole = rope_dim / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    const F a = load(x + i);
    store(x + i, fma(a, load(cos + i), shuffle(a, a, partner) * load(sin + i)));
  }
  for (int i = whole; i < rope_dim; i += 2) {
    const float a = x[i], b = x[i + 1];
    x[i] = a * cos[i] + b * sin[i];
    x[i + 1] = b * cos[i + 1] + a * sin[i + 1];
  }
}

// The fast Walsh-Hadamard transform of each block of `size` columns.
ATTN_INLINE void hadamard_row(float* x, int dim, int size) {
  int step = 1;
  if (size >= kLanes) {
    const I lane = lane_numbers();
    for (; step < kLanes; step *= 2) {
      const I partner = lane ^ step, second = (lane & step) != 0;
      for (int i = 0; i < dim; i += kLanes) {
        const F a = load(x + i), b = shuffle(a, a, partner);
        store(x + i, select(second, b - a, a + b));
      }
    }
    for (; step < size; step *= 2) {
      for (int block = 0; block < dim; block += 2 * step) {
        for (int i = block; i < block + step; i += kLanes) {
          const F a = load(x + i), b = load(x + step + i);
          store(x + i, a + b);
          store(x + step + i, a - b);
        }
      }
    }
  }
  for (; step < size; step *= 2) {
    for (int block = 0; block < dim; block += 2 * step) {
      for (int i = block; i < block + step; ++i) {
        const float a = x[i], b = x[step + i];
        x[i] = a + b;
        x[step + i] = a - b;
      }
    }
  }
  const float norm = 1 / __builtin_sqrtf(static_cast<float>(size));
  for (int i = 0; i < dim; i += kLanes) store(x + i, load(x + i) * norm);
}

// --- Rounding ---

// The lowest bytes of lanes from 0 to 255.
ATTN_INLINE B bytes_of(U u) {
#if ATTN_VECTOR_BYTES == 64
  return bit_cast<B>(_mm512_cvtepi32_epi8(bit_cast<__m512i>(u)));
#elif ATTN_VECTOR_BYTES == 32
  const __m256i v = bit_cast<__m256i>(u);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return bit_cast<B>(_mm_cvtsi128_si64(_mm_packus_epi16(words, words)));
#elif defined(__aarch64__)
  const uint16x4_t words = vmovn_u32(u);
  return bit_cast<B>(vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0));
#else
  return __builtin_convertvector(u, B);
#endif
}

// The nearest integer to v in [low, high], low for NaN, which max() and min() take first.
ATTN_INLINE I rounded_integer(F v, float low, float high) {
  return to_int(round_to_nearest(min(max(v, set1(low)), set1(high))));
}

// The e4m3 number nearest to v, ties to even; 448 at most.
ATTN_INLINE U to_e4m3(F v) {
  const F size = min(magnitude(v), set1(448.0f));
  const U u = bit_cast<U>(size);
  // Normal numbers, from 2^-6 on: f32's exponent less 120 is e4m3's, and 20 bits are rounded away.
  const U normal = (u - (120u << 23) + 0x7ffffu + ((u >> 20) & 1u)) >> 20;
  // Below, adding 2^14 leaves multiples of 2^-9 in the low bits.
  const U subnormal = bit_cast<U>(size + set1(0x1p14f)) - 0x46800000u;
  return (size < 0x1p-6f ? subnormal : normal) | ((bit_cast<U>(v) >> 24) & 0x80u);
}

// The e5m2 number nearest to v, likewise; 57344 at most. Its exponent is f32's less 112, its
// smallest normal number 2^-14, and subnormal ones are multiples of 2^-16.
ATTN_INLINE U to_e5m2(F v) {
  const F size = min(magnitude(v), set1(57344.0f));
  const U u = bit_cast<U>(size);
  const U normal = (u - (112u << 23) + 0xfffffu + ((u >> 21) & 1u)) >> 21;
  const U subnormal = bit_cast<U>(size + set1(0x1p7f)) - 0x43000000u;
  return (size < 0x1p-14f ? subnormal : normal) | ((bit_cast<U>(v) >> 24) & 0x80u);
}

// x divided by a scale, as a product where the inverse is a number; 0 where the scale is 0.
struct Divisor {
  float scale, inverse;
};
ATTN_INLINE Divisor divisor(float scale) {
  return {scale, __builtin_fabsf(scale) > 0x1p-100f ? 1 / scale : 0};
}
ATTN_INLINE F divided(F x, const Divisor& by) {
  if (by.inverse != 0) return x * by.inverse;
  return by.scale == 0 ? F{} : x / by.scale;
}

template <CacheType target>
ATTN_INLINE B code_of(F x, const Divisor& by) {
  const F y = divided(x, by);
  if (target == CacheType::e4m3) return bytes_of(to_e4m3(y));
  if (target == CacheType::e5m2) return bytes_of(to_e5m2(y));
  return bytes_of(bit_cast<U>(rounded_integer(y, -128, 127)) & 0xffu);
}

template <CacheType target>
inline constexpr float kLargestNumber = target == CacheType::e4m3   ? 448.0f
                                        : target == CacheType::e5m2 ? 57344.0f
                                                                    : 127.0f;

template <CacheType target>
ATTN_INLINE float store_codes(const float* x, int dim, bool chooses, float scale, std::byte* to) {
  if (chooses) {
    F most{};
    for (int i = 0; i < dim; i += kLanes) most = max(magnitude(load(x + i)), most);
    const float largest = largest_lane(most);
    scale = largest == 0 ? 1 : largest / kLargestNumber<target>;
  }
  const Divisor by = divisor(scale);
  const int whole = dim / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    const B codes = code_of<target>(load(x + i), by);
    __builtin_memcpy(to + i, &codes, sizeof(codes));
  }
  if (whole < dim) {
    const B codes = code_of<target>(load(x + whole), by);
    __builtin_memcpy(to + whole, &codes, static_cast<std::size_t>(dim - whole));
  }
  return scale;
}

// Writes the f16 nearest to x at `to`, and returns it.
ATTN_INLINE float store_block_scale(float x, std::byte* to) {
  const H h = to_f16(set1(x));
  const std::uint16_t bits = h[0];
  __builtin_memcpy(to, &bits, sizeof(bits));
  return scale_of_block(to);
}

ATTN_INLINE void store_q8_0(const float* x, std::byte* block) {
  F most{};
  for (int i = 0; i < 32; i += kLanes) most = max(magnitude(load(x + i)), most);
  const Divisor by = divisor(store_block_scale(largest_lane(most) / 127.0f, block));
  for (int i = 0; i < 32; i += kLanes) {
    const B codes = code_of<CacheType::i8>(load(x + i), by);
    __builtin_memcpy(block + 2 + i, &codes, sizeof(codes));
  }
}

ATTN_INLINE void store_q4_0(const float* x, std::byte* block) {
  F most{}, least{};
  for (int i = 0; i < 32; i += kLanes) {
    most = max(load(x + i), most);
    least = max(-load(x + i), least);
  }
  // The largest by magnitude, with its sign; of two that are equal the first.
  const float above = largest_lane(most), below = largest_lane(least);
  float largest = above > below ? above : -below;
  for (int i = 0; above == below && i < 32; ++i) {
    if (__builtin_fabsf(x[i]) != above) continue;
    largest = x[i];
    break;
  }
  const Divisor by = divisor(store_block_scale(largest / -8.0f, block));
  for (int i = 0; i < 16; i += kLanes) {
    const I low = rounded_integer(divided(load(x + i), by) + 8.0f, 0, 15);
    const I high = rounded_integer(divided(load(x + 16 + i), by) + 8.0f, 0, 15);
    const B codes = bytes_of(bit_cast<U>(low | high << 4));
    __builtin_memcpy(block + 2 + i, &codes, sizeof(codes));
  }
}

template <DType target>
ATTN_INLINE void store_floats(const float* x, int dim, std::byte* to) {
  const int whole = dim / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) store_row(to, i, kLanes, target, load(x + i));
  if (whole < dim) store_row(to, whole, dim - whole, target, load(x + whole));
}

ATTN_INLINE float store_append_row(const float* x, int dim, CacheType target, bool chooses,
                                   float scale, std::byte* to) {
  switch (target) {
    case CacheType::bf16:
      store_floats<DType::bf16>(x, dim, to);
      return scale;
    case CacheType::f16:
      store_floats<DType::f16>(x, dim, to);
      return scale;
    case CacheType::e4m3:
      return store_codes<CacheType::e4m3>(x, dim, chooses, scale, to);
    case CacheType::e5m2:
      return store_codes<CacheType::e5m2>(x, dim, chooses, scale, to);
    case CacheType::i8:
      return store_codes<CacheType::i8>(x, dim, chooses, scale, to);
    case CacheType::q8_0:
      for (int i = 0; i < dim; i += 32) store_q8_0(x + i, to + i / 32 * 34);
      return scale;
    case CacheType::q4_0:
      for (int i = 0; i < dim; i += 32) store_q4_0(x + i, to + i / 32 * 18);
      return scale;
    case CacheType::as_q:
    case CacheType::f64:
    case CacheType::f32:
      break;
  }
  store_floats<DType::f32>(x, dim, to);
  return scale;
}

static float append_row(const AppendSteps& steps, const float* cos, const float* sin,
                        const std::byte* from, float scale, std::byte* to) {
  float x[kMostRow];
  const int dim = steps.dim;
  with_dtype(steps.source, [&]<DType source>() { load_append_row<source>(from, dim, x); });
  if (steps.norm) norm_row(x, dim, steps.norm_eps, steps.weight);
  if (steps.rope_dim > 0) {
    if (steps.interleaved) {
      rotate_interleaved(x, steps.rope_dim, cos, sin);
    } else {
      rotate_halves(x, steps.rope_dim, cos, sin);
    }
  }
  if (steps.hadamard > 1) hadamard_row(x, dim, steps.hadamard);
  return store_append_row(x, dim, steps.target, steps.chooses_scale, scale, to);
}

}  // namespace attn::cpu::ATTN_ISA
