// Rows of any floating dtype as f32 vectors, and back.
#pragma once

#include "attn/tensor.hpp"
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
#else
  return __builtin_convertvector(h, U);
#endif
}
ATTN_INLINE H narrow(U u) {
#if ATTN_VECTOR_BYTES == 64
  return bit_cast<H>(_mm512_cvtepi32_epi16(bit_cast<__m512i>(u)));
#else
  return __builtin_convertvector(u, H);
#endif
}

ATTN_INLINE F from_bf16(H h) { return bit_cast<F>(widen(h) << 16); }

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
