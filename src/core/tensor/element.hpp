// One element of a floating dtype (f64, f32, bf16, f16), through double. For code where clarity
// matters more than speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attn/tensor.hpp"
#include "core/tensor/widen.hpp"

namespace attn::core {

inline double load_element(const std::byte* from, DType dtype) {
  const auto as = [from](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::f64:
      return as(double{});
    case DType::bf16:
      return static_cast<float>(as(bfloat16{}));
    case DType::f16:
      return static_cast<float>(as(float16{}));
    case DType::f32:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  return as(float{});
}

// n elements, one after the other: the dtype is looked at once.
template <class Real>
void load_elements(const std::byte* from, DType dtype, std::int64_t n, Real* to) {
  const auto all = [&](auto value, auto widened) {
    for (std::int64_t i = 0; i < n; ++i) {
      std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(value)), sizeof(value));
      to[i] = static_cast<Real>(widened(value));
    }
  };
  const auto itself = [](auto value) { return value; };
  switch (dtype) {
    case DType::f64:
      return all(double{}, itself);
    case DType::bf16:
      return all(bfloat16{}, [](bfloat16 value) { return widen(value); });
    case DType::f16:
      return all(float16{}, [](float16 value) { return widen(value); });
    case DType::f32:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  all(float{}, itself);
}

// Rounds to the dtype; 16-bit formats by way of float.
inline void store_element(std::byte* to, DType dtype, double value) {
  const auto put = [to](auto rounded) { std::memcpy(to, &rounded, sizeof(rounded)); };
  switch (dtype) {
    case DType::f64:
      return put(value);
    case DType::bf16:
      return put(bfloat16(static_cast<float>(value)));
    case DType::f16:
      return put(float16(static_cast<float>(value)));
    case DType::f32:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  put(static_cast<float>(value));
}

}  // namespace attn::core
