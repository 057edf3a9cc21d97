// The vector types that every CPU kernel is written in: GCC vector extensions, so that + - * / <
// and ?: work on them, plus the few operations where an instruction set has something better than
// the generic form.
//
// Each file in isa/ defines ATTN_ISA (a namespace) and ATTN_VECTOR_BYTES, then includes the
// kernels. All that a kernel header defines lives in attn::cpu::ATTN_ISA: code built with AVX-512
// flags must never be the copy of an inline function that the linker picks for the rest of the
// program. For the same reason kernels use no std:: templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ATTN_INLINE static inline __attribute__((always_inline))

namespace attn::cpu::ATTN_ISA {

inline constexpr int kLanes = ATTN_VECTOR_BYTES / 4;
// Vectors in a Q block: with 8 keys at a time a score tile of one block holds 16 accumulators,
// enough to hide an FMA latency of 4 on two pipes (8) and few enough for GCC to keep all of them,
// the loads and the broadcast in 32 registers. AVX2 has 16 registers: 6 x 2 accumulators, 2 loads
// and 1 broadcast. AArch64 has 32: 16 accumulators, 8 vectors of elements and the loads.
inline constexpr int kVectors = 2;
inline constexpr int kRows = kVectors * kLanes;  // rows of a Q block
#if ATTN_VECTOR_BYTES == 64 || defined(__aarch64__)
inline constexpr bool kManyRegisters = true;  // 32 vector registers, else 16
inline constexpr int kRegisterKeys = 8;
#else
inline constexpr bool kManyRegisters = false;
inline constexpr int kRegisterKeys = ATTN_VECTOR_BYTES == 32 ? 6 : 4;
#endif
// NEON multiplies a vector by an element of another: a load brings kLanes numbers, where a
// broadcast of each would be a load of its own.
#if defined(__aarch64__)
inline constexpr bool kByElement = true;
#else
inline constexpr bool kByElement = false;
#endif

// Runs body<i>() for i in [kFirst, kCount): an element's number is part of an instruction.
template <int kCount, int kFirst = 0, class Body>
ATTN_INLINE void for_each_number(const Body& body) {
  if constexpr (kFirst < kCount) {
    body.template operator()<kFirst>();
    for_each_number<kCount, kFirst + 1>(body);
  }
}

typedef float F __attribute__((vector_size(ATTN_VECTOR_BYTES)));
typedef std::int32_t I __attribute__((vector_size(ATTN_VECTOR_BYTES)));
typedef std::uint32_t U __attribute__((vector_size(ATTN_VECTOR_BYTES)));

ATTN_INLINE F set1(float x) { return x - F{}; }
ATTN_INLINE I set1(std::int32_t x) { return x - I{}; }
ATTN_INLINE U set1(std::uint32_t x) { return x - U{}; }

// Unaligned.
template <class V, class T>
ATTN_INLINE V load_as(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}
ATTN_INLINE F load(const float* p) { return load_as<F>(p); }
ATTN_INLINE I load(const std::int32_t* p) { return load_as<I>(p); }
ATTN_INLINE U load(const std::uint32_t* p) { return load_as<U>(p); }
ATTN_INLINE void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof(v)); }
ATTN_INLINE void store(std::int32_t* p, I v) { __builtin_memcpy(p, &v, sizeof(v)); }
ATTN_INLINE void store(std::uint32_t* p, U v) { __builtin_memcpy(p, &v, sizeof(v)); }

template <class To, class From>
ATTN_INLINE To bit_cast(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  __builtin_memcpy(&out, &v, sizeof(out));
  return out;
}

// condition lanes are 0 or -1, as comparisons give.
ATTN_INLINE F select(I condition, F a, F b) { return condition ? a : b; }
ATTN_INLINE I select(I condition, I a, I b) { return condition ? a : b; }

// The larger of each lane.
ATTN_INLINE I larger(I a, I b) {
#if ATTN_VECTOR_BYTES == 64
  return bit_cast<I>(_mm512_max_epi32(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
#elif ATTN_VECTOR_BYTES == 32
  return bit_cast<I>(_mm256_max_epi32(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
#else
  return select(a > b, a, b);
#endif
}

ATTN_INLINE F to_float(I v) { return __builtin_convertvector(v, F); }
ATTN_INLINE I to_int(F v) { return __builtin_convertvector(v, I); }  // truncates

// Lane i is lane index[i] of a followed by b.
ATTN_INLINE F shuffle(F a, F b, I index) {
#if defined(__clang__)  // has no __builtin_shuffle
  F out;
  for (int i = 0; i < kLanes; ++i) out[i] = index[i] < kLanes ? a[index[i]] : b[index[i] - kLanes];
  return out;
#else
  return __builtin_shuffle(a, b, index);
#endif
}

// The larger; b where either is NaN.
ATTN_INLINE F max(F a, F b) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_max_ps(a, b);
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// The smaller; b where either is NaN.
ATTN_INLINE F min(F a, F b) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_min_ps(a, b);
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

// max(floor, x) and min(ceiling, x) for bounds that are numbers; NaN stays. On NEON they are one
// instruction, where max() and min() are a comparison and a selection.
ATTN_INLINE F at_least(F floor, F x) {
#if defined(__aarch64__)
  return vmaxq_f32(floor, x);
#else
  return max(floor, x);
#endif
}
ATTN_INLINE F at_most(F ceiling, F x) {
#if defined(__aarch64__)
  return vminq_f32(ceiling, x);
#else
  return min(ceiling, x);
#endif
}

// The larger; of a number and a NaN either. That is enough for the maximum of a row of scores: a
// NaN among them makes the row NaN whatever the maximum.
ATTN_INLINE F max_score(F a, F b) {
#if defined(__aarch64__)
  return vmaxnmq_f32(a, b);
#else
  return max(a, b);
#endif
}

// a * b + c, rounded once where the instruction set has it.
ATTN_INLINE F fma(F a, F b, F c) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

#if defined(__aarch64__)
// Element kLane of a, times b, plus c.
template <int kLane>
ATTN_INLINE F fma_element(F a, F b, F c) {
  return vfmaq_laneq_f32(c, b, a, kLane);
}
#endif

ATTN_INLINE F round_to_nearest(F x) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  return vrndnq_f32(x);
#else
  const F magic =
      set1(0x1.8p23f);  // |x| < 2^22: adding it leaves the integer in the low mantissa bits
  return (x + magic) - magic;
#endif
}

// 2^f for f in [-1/2, 1/2]: minimax polynomial of degree 6, constant term exactly 1 so that exp2(0)
// = 1. Relative error 2.6e-9, so the float result is within 1.01 ulp.
ATTN_INLINE F exp2_fraction(F f) {
  F p = fma(set1(1.5594674915e-4f), f, set1(1.3406643411e-3f));
  p = fma(p, f, set1(9.6176927909e-3f));
  p = fma(p, f, set1(5.5503103882e-2f));
  p = fma(p, f, set1(2.4022652209e-1f));
  p = fma(p, f, set1(6.9314724207e-1f));
  return fma(p, f, set1(1.0f));
}

// 2^y for y <= 127; -inf gives 0, NaN gives NaN; results below 2^-126 may be flushed to 0 or be too
// small.
ATTN_INLINE F exp2(F y) {
#if ATTN_VECTOR_BYTES == 64
  y = max(set1(-1000.0f), y);  // -inf less -inf would be an invalid operation
  const F n = round_to_nearest(y);
  return _mm512_scalef_ps(exp2_fraction(y - n), n);
#elif defined(__aarch64__)
  // At -127 the polynomial is 1, and adding -127 to its exponent field leaves 0. A NaN goes through
  // all steps, and its n is 0 as an integer.
  const F bounded = at_least(set1(-127.0f), y);
  const F n = round_to_nearest(bounded);
  const F p = exp2_fraction(bounded - n);
  return bit_cast<F>(bit_cast<U>(p) + (bit_cast<U>(to_int(n)) << 23));
#else
  const F floor = set1(-126.0f);
  const F clamped = select(y < floor, floor, y);
  const F n = round_to_nearest(clamped);
  const F p = exp2_fraction(clamped - n);
  // |n| <= 127 and p in [0.7, 1.42], so adding n to the exponent field cannot overflow it.
  const F scaled = bit_cast<F>(bit_cast<U>(p) + (bit_cast<U>(to_int(n)) << 23));
  return select(y < floor, F{}, select(y == y, scaled, y));
#endif
}

// e^d for d <= 0, and 1 above: a probability, also where LSE is so large that it is off by whole
// numbers. -inf gives 0, NaN gives NaN; results below 2^-126 may be flushed to 0. The
// fraction of d log2(e) is taken before the product is rounded, so the relative error is 1e-7
// whatever d: at d = -15 half a unit in the last place of the product alone would be 7e-7 of the
// result.
#if defined(__aarch64__)
ATTN_INLINE F exp_of_difference(F d) {  // a NaN goes through all steps
  const F bounded = at_most(F{}, at_least(set1(-87.3f), d));
  const F n = round_to_nearest(bounded * 1.44269504f);
  const F f = fma(bounded, set1(1.925963033e-8f), fma(bounded, set1(1.44269504f), -n));
  const F scaled = bit_cast<F>(bit_cast<U>(exp2_fraction(f)) + (bit_cast<U>(to_int(n)) << 23));
  return select(d < -87.3f, F{}, scaled);
}
#else
ATTN_INLINE F exp_of_difference(F d) {
  d = min(F{}, max(set1(-700.0f), d));
#if ATTN_VECTOR_BYTES == 16  // no FMA: n ln 2 is subtracted in two parts, as exp() does
  const F n = round_to_nearest(max(set1(-126.0f), d * 1.44269504f));
  const F f = ((d - n * 0.693359375f) + n * 2.12194440e-4f) * 1.44269504f;
#else
  // log2(e) = 1.44269502 + 1.925963e-8
#if ATTN_VECTOR_BYTES == 64
  const F n = round_to_nearest(d * 1.44269504f);
#else
  const F n = round_to_nearest(max(set1(-126.0f), d * 1.44269504f));
#endif
  const F f = fma(d, set1(1.925963033e-8f), fma(d, set1(1.44269504f), -n));
#endif
#if ATTN_VECTOR_BYTES == 64
  return _mm512_scalef_ps(exp2_fraction(f), n);
#else
  const F scaled = bit_cast<F>(bit_cast<U>(exp2_fraction(f)) + (bit_cast<U>(to_int(n)) << 23));
  return select(d < -87.3f, F{}, select(d == d, scaled, d));
#endif
}
#endif

#if ATTN_VECTOR_BYTES == 64
// exp2_fraction() for f in [0, 1): relative error 2.1e-9.
ATTN_INLINE F exp2_unit(F f) {
  F p = fma(set1(2.1612914943e-4f), f, set1(1.2467846449e-3f));
  p = fma(p, f, set1(9.6754515666e-3f));
  p = fma(p, f, set1(5.5485280619e-2f));
  p = fma(p, f, set1(2.4022930555e-1f));
  p = fma(p, f, set1(6.9314704444e-1f));
  return fma(p, f, set1(1.0f));
}

// exp2() in eight slots of Intel's two 512-bit ports, not ten and a half: rounding takes two and a
// half and the difference one, the reduction y - floor(y) one, and scalef takes the floor of y
// itself. Zen 4 rounds and subtracts on pipes that no FMA wants; the reduction was not timed there.
ATTN_INLINE F exp2_by_reduction(F y) {
  return _mm512_scalef_ps(exp2_unit(_mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)),
                          y);
}
#endif

}  // namespace attn::cpu::ATTN_ISA
