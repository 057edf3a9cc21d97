// The types of caches (attn/cache_type.hpp): which there are and how long their rows are.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"

namespace attn::core {

inline constexpr std::int64_t kCacheBlock = 32;  // elements of a block of q8_0 or q4_0

constexpr CacheType cache_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CacheType::f64;
    case DType::bf16:
      return CacheType::bf16;
    case DType::f16:
      return CacheType::f16;
    case DType::f32:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  return CacheType::f32;
}
// How Q, K and V of a problem are stored; never as_q.
inline CacheType type_of_q(const Problem& p) {
  return p.type_q == CacheType::as_q ? cache_type(p.dtype) : p.type_q;
}
inline CacheType type_of_k(const Problem& p) {
  return p.type_k == CacheType::as_q ? cache_type(p.dtype) : p.type_k;
}
inline CacheType type_of_v(const Problem& p) {
  return p.type_v == CacheType::as_q ? cache_type(p.dtype) : p.type_v;
}
// Of K or of V.
inline bool has_own_types(const Problem& p) {
  return p.type_k != CacheType::as_q || p.type_v != CacheType::as_q;
}
inline bool has_own_type_q(const Problem& p) { return p.type_q != CacheType::as_q; }
inline DType type_of_o(const Problem& p) { return p.type_o.given() ? p.type_o : p.dtype; }
inline bool has_own_type_o(const Problem& p) { return type_of_o(p) != p.dtype; }
constexpr bool is_float8(CacheType type) {
  return type == CacheType::e4m3 || type == CacheType::e5m2;
}
// Whether the products of Q K^T and of P V can be those of 8-bit floats.
inline bool is_float8(const Problem& p) {
  return is_float8(p.type_q) && is_float8(p.type_k) && is_float8(p.type_v);
}
// Whether elements are blocks with a scale of their own, and whether scales of Inputs multiply
// them.
constexpr bool is_blocked(CacheType type) {
  return type == CacheType::q8_0 || type == CacheType::q4_0;
}
constexpr bool is_scaled(CacheType type) { return is_float8(type) || type == CacheType::i8; }

// The largest number of a type that has scales: what a scale is chosen by.
constexpr double largest_number(CacheType type) {
  return type == CacheType::e4m3 ? 448 : type == CacheType::e5m2 ? 57344 : 127;
}

// Bytes of a row of `dim` elements. Example: 64 of q4_0 are 36.
constexpr std::int64_t row_bytes(CacheType type, std::int64_t dim) {
  switch (type) {
    case CacheType::f64:
      return 8 * dim;
    case CacheType::as_q:
    case CacheType::f32:
      break;
    case CacheType::bf16:
    case CacheType::f16:
      return 2 * dim;
    case CacheType::e4m3:
    case CacheType::e5m2:
    case CacheType::i8:
      return dim;
    case CacheType::q8_0:
      return dim / kCacheBlock * 34;
    case CacheType::q4_0:
      return dim / kCacheBlock * 18;
  }
  return 4 * dim;
}

}  // namespace attn::core
