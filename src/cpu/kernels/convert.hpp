// Rows of any floating dtype as f32 vectors, and back.
#pragma once

#include "attn/tensor.hpp"
#include "core/cache_type.hpp"
#include "cpu/kernels/vec.hpp"

namespace attn::cpu::ATTN_ISA {

typedef std::uint16_t H __attribute__((vector_size(ATTN_VECTOR_BYTES / 2)));

// Zero extension, and the low halves. GCC 12 splits __builtin_convertvector of these into many
// pieces.
ATTN_INLINE U widen(H h) {
#if ATTN_VECTOR_BYTES == 64
  return bit_cast<U>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(h)));
#elif ATTN_VECTOR_BYTES == 32
  return bit_cast<U>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(h)));
#elif defined(__aarch64__)
  return vmovl_u16(bit_cast<uint16x4_t>(h));
#else
  return __builtin_convertvector(h, U);
#endif
}
ATTN_INLINE H narrow(U u) {
#if ATTN_VECTOR_BYTES == 64
  return bit_cast<H>(_mm512_cvtepi32_epi16(bit_cast<__m512i>(u)));
#elif defined(__aarch64__)
  return bit_cast<H>(vmovn_u32(bit_cast<uint32x4_t>(u)));
#else
  return __builtin_convertvector(u, H);
#endif
}

ATTN_INLINE F from_bf16(H h) {
#if defined(__aarch64__)
  return bit_cast<F>(vshll_n_u16(bit_cast<uint16x4_t>(h), 16));
#else
  return bit_cast<F>(widen(h) << 16);
#endif
}

// Round to nearest, ties to even; NaN stays NaN (quieted).
ATTN_INLINE H to_bf16(F v) {
  const U u = bit_cast<U>(v);
  const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U quiet = (u >> 16) | 0x40u;
  return narrow(v == v ? rounded : quiet);
}

ATTN_INLINE F from_f16(H h) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_cvtph_ps(bit_cast<__m256i>(h));
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_cvtph_ps(bit_cast<__m128i>(h));
#elif defined(__aarch64__)
  return vcvt_f32_f16(bit_cast<float16x4_t>(h));
#else
  // Shifted into f32's fields, an f16 value is 2^112 times too small (bias 127 - 15), subnormals
  // included.
  const U u = widen(h);
  const U sign = (u & 0x8000u) << 16;
  const U magnitude = (u & 0x7fffu) << 13;
  const U finite = bit_cast<U>(bit_cast<F>(magnitude) * set1(0x1p112f));
  const U special = magnitude | 0x7f800000u;
  return bit_cast<F>((magnitude >= 0x0f800000u ? special : finite) | sign);
#endif
}

ATTN_INLINE H to_f16(F v) {
#if ATTN_VECTOR_BYTES == 64
  return bit_cast<H>(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif ATTN_VECTOR_BYTES == 32
  return bit_cast<H>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  return bit_cast<H>(vcvt_f16_f32(v));
#else
  const U u = bit_cast<U>(v);
  const U sign = (u >> 16) & 0x8000u;
  const U magnitude = u & 0x7fffffffu;
  // Normal results: rebias the exponent by -112 and round the 13 dropped bits to even; a carry runs
  // into the exponent.
  const U normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results (below 2^-14): adding 1/2 puts the value's units of 2^-24 in the low mantissa
  // bits.
  const U subnormal = bit_cast<U>(bit_cast<F>(magnitude) + set1(0.5f)) - 0x3f000000u;
  U half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? U{} + 0x7c00u : half;  // 65520 and above round to infinity
  half = magnitude > 0x7f800000u ? U{} + 0x7e00u : half;
  return narrow(half | sign);
#endif
}

// Runs body<dtype>(). Here and below dtype is f32, bf16 or f16: rows of other types reach no
// kernel.
template <class Body>
ATTN_INLINE void with_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::bf16:
      return body.template operator()<DType::bf16>();
    case DType::f16:
      return body.template operator()<DType::f16>();
    case DType::f32:
    case DType::f64:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  body.template operator()<DType::f32>();
}

ATTN_INLINE F load_row(const std::byte* row, int i, DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return from_bf16(load_as<H>(row + 2 * static_cast<std::ptrdiff_t>(i)));
    case DType::f16:
      return from_f16(load_as<H>(row + 2 * static_cast<std::ptrdiff_t>(i)));
    case DType::f32:
    case DType::f64:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  return load_as<F>(row + 4 * static_cast<std::ptrdiff_t>(i));
}

// The first `count` < kLanes elements from i on; the other lanes are zero and their memory is not
// touched.
ATTN_INLINE F load_row_part(const std::byte* row, int i, int count, DType dtype) {
  if (dtype == DType::f32) {
    F v{};
    __builtin_memcpy(&v, row + 4 * static_cast<std::ptrdiff_t>(i),
                     static_cast<std::size_t>(count) * 4);
    return v;
  }
  H h{};
  __builtin_memcpy(&h, row + 2 * static_cast<std::ptrdiff_t>(i),
                   static_cast<std::size_t>(count) * 2);
  return dtype == DType::bf16 ? from_bf16(h) : from_f16(h);
}

// --- Rows of caches (attn/cache_type.hpp), without the scales of Inputs ---

typedef std::uint8_t B __attribute__((vector_size(ATTN_VECTOR_BYTES / 4)));

#if defined(__aarch64__)
// The four bytes, then zeros.
ATTN_INLINE uint8x8_t vector_of(B b) { return vcreate_u8(bit_cast<std::uint32_t>(b)); }
#endif

ATTN_INLINE H widen_bytes(B b) {
#if ATTN_VECTOR_BYTES == 64
  return bit_cast<H>(_mm256_cvtepu8_epi16(bit_cast<__m128i>(b)));
#elif ATTN_VECTOR_BYTES == 32
  return bit_cast<H>(_mm_cvtepu8_epi16(_mm_set_epi64x(0, bit_cast<long long>(b))));
#elif defined(__aarch64__)
  return bit_cast<H>(vget_low_u16(vmovl_u8(vector_of(b))));
#else
  return __builtin_convertvector(b, H);
#endif
}

ATTN_INLINE F from_i8(B b) {
#if ATTN_VECTOR_BYTES == 64
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bit_cast<__m128i>(b)));
#elif ATTN_VECTOR_BYTES == 32
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_set_epi64x(0, bit_cast<long long>(b))));
#elif defined(__aarch64__)
  return to_float(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(vector_of(b))))));
#else
  const I x = bit_cast<I>(widen(widen_bytes(b)) << 24) >> 24;
  return __builtin_convertvector(x, F);
#endif
}

// Moved into f16's fields an e4m3 number is 2^8 times too small (bias 15 - 7), subnormals included.
// NaN, all of whose magnitude bits are set, would be 480.
ATTN_INLINE F from_e4m3(B b) {
#if defined(__aarch64__)  // a signed shift brings the sign to bits 15 and 14, of which one goes
  const int16x8_t shifted = vreinterpretq_s16_u16(vshll_n_u8(vector_of(b), 8));
  const H bits = bit_cast<H>(vshr_n_s16(vget_low_s16(shifted), 1)) & 0xbfff;
  return from_f16((bits & 0x7fff) == 0x3f80 ? H{} + 0x7e00 : bits) * set1(0x1p8f);
#else
  const H h = widen_bytes(b);
  const H magnitude = h & 0x7f;
  const H bits = magnitude << 7 | (h & 0x80) << 8;
  return from_f16(magnitude == 0x7f ? H{} + 0x7e00 : bits) * set1(0x1p8f);
#endif
}

// e5m2 is the upper half of f16.
ATTN_INLINE F from_e5m2(B b) { return from_f16(widen_bytes(b) << 8); }

ATTN_INLINE float scale_of_block(const std::byte* block) {
  const auto bits = load_as<std::uint16_t>(block);
#ifdef __F16C__
  return _cvtsh_ss(bits);
#elif defined(__aarch64__)
  return static_cast<float>(bit_cast<__fp16>(bits));
#else
  F f = from_f16(H{} + bits);
  return f[0];
#endif
}

ATTN_INLINE F load_q8_0(const std::byte* row, int i) {
  const std::byte* const block = row + static_cast<std::ptrdiff_t>(i / 32) * 34;
  return from_i8(load_as<B>(block + 2 + i % 32)) * set1(scale_of_block(block));
}

// Numbers of 4 bits from i on, of the 16 bytes of a block. Lanes do not pass the middle of a block,
// where they change from the lower bits to the upper.
ATTN_INLINE F from_nibbles(const std::byte* bytes, int i) {
  static_assert(16 % kLanes == 0);
  const B b = load_as<B>(bytes + i % 16);
#if ATTN_VECTOR_BYTES == 64
  const U pairs = bit_cast<U>(_mm512_cvtepu8_epi32(bit_cast<__m128i>(b)));
#elif ATTN_VECTOR_BYTES == 32
  const U pairs = bit_cast<U>(_mm256_cvtepu8_epi32(_mm_set_epi64x(0, bit_cast<long long>(b))));
#else
  const U pairs = widen(widen_bytes(b));
#endif
  return to_float(bit_cast<I>(i % 32 < 16 ? pairs & 15U : pairs >> 4));
}

ATTN_INLINE F load_q4_0(const std::byte* row, int i) {
  const std::byte* const block = row + static_cast<std::ptrdiff_t>(i / 32) * 18;
  return (from_nibbles(block + 2, i) - set1(8.0F)) * set1(scale_of_block(block));
}

// The first `count` < kLanes elements from i on; the other lanes are zero and their memory is not
// touched.
ATTN_INLINE B load_bytes_part(const std::byte* row, int i, int count) {
  B b{};
  __builtin_memcpy(&b, row + i, static_cast<std::size_t>(count));
  return b;
}

ATTN_INLINE F load_row(const std::byte* row, int i, CacheType type) {
  switch (type) {
    case CacheType::bf16:
      return load_row(row, i, DType::bf16);
    case CacheType::f16:
      return load_row(row, i, DType::f16);
    case CacheType::e4m3:
      return from_e4m3(load_as<B>(row + i));
    case CacheType::e5m2:
      return from_e5m2(load_as<B>(row + i));
    case CacheType::i8:
      return from_i8(load_as<B>(row + i));
    case CacheType::q8_0:
      return load_q8_0(row, i);
    case CacheType::q4_0:
      return load_q4_0(row, i);
    case CacheType::as_q:
    case CacheType::f64:
    case CacheType::f32:
      break;
  }
  return load_row(row, i, DType::f32);
}

// The same of fewer elements than lanes, which blocks never ask for: their rows are whole vectors.
ATTN_INLINE F load_row_part(const std::byte* row, int i, int count, CacheType type) {
  switch (type) {
    case CacheType::bf16:
      return load_row_part(row, i, count, DType::bf16);
    case CacheType::f16:
      return load_row_part(row, i, count, DType::f16);
    case CacheType::e4m3:
      return from_e4m3(load_bytes_part(row, i, count));
    case CacheType::e5m2:
      return from_e5m2(load_bytes_part(row, i, count));
    case CacheType::i8:
      return from_i8(load_bytes_part(row, i, count));
    case CacheType::as_q:
    case CacheType::f64:
    case CacheType::f32:
    case CacheType::q8_0:
    case CacheType::q4_0:
      break;
  }
  return load_row_part(row, i, count, DType::f32);
}

// Runs body<type>(). as_q and f64 reach no kernel.
template <class Body>
ATTN_INLINE void with_cache_type(CacheType type, const Body& body) {
  switch (type) {
    case CacheType::bf16:
      return body.template operator()<CacheType::bf16>();
    case CacheType::f16:
      return body.template operator()<CacheType::f16>();
    case CacheType::e4m3:
      return body.template operator()<CacheType::e4m3>();
    case CacheType::e5m2:
      return body.template operator()<CacheType::e5m2>();
    case CacheType::i8:
      return body.template operator()<CacheType::i8>();
    case CacheType::q8_0:
      return body.template operator()<CacheType::q8_0>();
    case CacheType::q4_0:
      return body.template operator()<CacheType::q4_0>();
    case CacheType::as_q:
    case CacheType::f64:
    case CacheType::f32:
      break;
  }
  body.template operator()<CacheType::f32>();
}

// row[i, i + count) <- the first `count` <= kLanes lanes of v.
ATTN_INLINE void store_row(std::byte* row, int i, int count, DType dtype, F v) {
  if (dtype == DType::f32) {
    std::byte* p = row + 4 * static_cast<std::ptrdiff_t>(i);
    if (count == kLanes) {
      __builtin_memcpy(p, &v, sizeof(v));
    } else {
      __builtin_memcpy(p, &v, static_cast<std::size_t>(count) * 4);
    }
    return;
  }
  const H h = dtype == DType::bf16 ? to_bf16(v) : to_f16(v);
  std::byte* p = row + 2 * static_cast<std::ptrdiff_t>(i);
  if (count == kLanes) {
    __builtin_memcpy(p, &h, sizeof(h));
  } else {
    __builtin_memcpy(p, &h, static_cast<std::size_t>(count) * 2);
  }
}

}  // namespace attn::cpu::ATTN_ISA
