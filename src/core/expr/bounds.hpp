// Interval arithmetic: a range that holds every value an operation can take on operands in given
// ranges, under the arithmetic of evaluate<float>.
#pragma once

#include <cstdint>
#include <limits>

#include "attn/expr.hpp"

namespace attn::expr {

inline constexpr std::int64_t kIntMin = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int64_t kIntMax = std::numeric_limits<std::int32_t>::max();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// int32 and boolean (0, 1) values lie in [lo, hi]; float32 values in [flo, fhi] or, if nan, are
// NaN. flo and fhi themselves are never NaN.
struct Bounds {
  std::int64_t lo = 0, hi = 0;
  float flo = 0, fhi = 0;
  bool nan = false;
};

inline Bounds int_bounds(std::int64_t lo, std::int64_t hi) noexcept {
  return {lo, hi, 0, 0, false};
}
inline Bounds float_bounds(float lo, float hi, bool nan) noexcept { return {0, 0, lo, hi, nan}; }
inline Bounds any_int() noexcept { return int_bounds(kIntMin, kIntMax); }
inline Bounds any_float() noexcept { return float_bounds(-kInfinity, kInfinity, true); }
inline Bounds any_boolean() noexcept { return int_bounds(0, 1); }

// Of a condition that holds always, never or, where both are false, sometimes.
inline Bounds condition_bounds(bool always, bool never) noexcept {
  return int_bounds(always ? 1 : 0, never ? 0 : 1);
}

// A range that holds both.
Bounds hull(const Bounds& a, const Bounds& b) noexcept;

// op (unary or binary) on operands of type `operands`.
Bounds apply_int(Op op, const Bounds& a, const Bounds& b) noexcept;
Bounds apply_float(Op op, const Bounds& a, const Bounds& b) noexcept;
Bounds to_float(const Bounds& a) noexcept;

// Of an index.
struct IndexRange {
  std::int64_t lo = 0, hi = 0;
};
// The element of `tensor` (loaded as `type`) at any index of the box with one range a dimension.
// Looks at the elements when the box has at most 4096.
Bounds load_bounds(const Tensor& tensor, Type type, const IndexRange* index) noexcept;

// A range of the values that e takes on the tile; classify() is this for a mask. A float that
// depends on the score may be any float.
Bounds bounds_of(const Expr& e, const Tile& tile, const Bindings& bindings = {});

}  // namespace attn::expr
