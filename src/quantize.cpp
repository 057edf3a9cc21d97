// attn::quantize: rows of floating numbers to the types of caches.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/cache_type.hpp"
#include "attn/error.hpp"
#include "core/cached_rows.hpp"
#include "core/tensor/element.hpp"
#include "core/validate/argument_check.hpp"

namespace attn {
namespace {

using core::ArgumentCheck;

std::size_t last_of(const Tensor& t) { return static_cast<std::size_t>(t.rank) - 1; }

// Leading dimensions of t, `rank` of them, are those of x.
void check_rows(const ArgumentCheck& check, std::string_view name, const Tensor& t, const Tensor& x,
                std::int32_t rank) {
  const bool same =
      t.rank == rank && std::equal(t.shape.begin(), t.shape.begin() + x.rank - 1, x.shape.begin());
  if (!same) {
    check.refuse(
        fmt::format("{} is {}; accepted are the rows of x, {}", name, to_string(t), to_string(x)));
  }
}

void check_arguments(const Tensor& x, CacheType type, const Tensor& to, const Tensor& scale) {
  const ArgumentCheck check;
  if (type == CacheType::as_q || name(type) == "unknown") {
    check.refuse(fmt::format(
        "type is {}; accepted are f64, f32, bf16, f16, e4m3, i8, q8_0 and q4_0", name(type)));
  }
  check.view("x", x);
  if (x.rank < 1 || !is_floating(x.dtype)) {
    check.refuse(fmt::format("x is {}; accepted are rows of f32, bf16, f16 and f64", to_string(x)));
  }
  check.contiguous_rows("x", x);
  const std::int64_t dim = x.shape[last_of(x)];
  if (core::is_blocked(type) && dim % core::kCacheBlock != 0) {
    check.refuse(fmt::format("x is {} and type is {}; accepted are rows of multiples of {}",
                             to_string(x), name(type), core::kCacheBlock));
  }
  check.view("to", to);
  check_rows(check, "to", to, x, x.rank);
  if (to.dtype != storage_dtype(type) || to.shape[last_of(to)] != row_size(type, dim)) {
    check.refuse(fmt::format("to is {}; accepted are rows of {} {} for {} elements of {}",
                             to_string(to), row_size(type, dim), name(storage_dtype(type)), dim,
                             name(type)));
  }
  check.contiguous_rows("to", to);
  const core::NamedTensor inputs[] = {{"x", x}};
  const core::NamedTensor outputs[] = {{"to", to}, {"scale", scale}};
  if (scale.given()) {
    if (!core::is_scaled(type)) {
      check.refuse(fmt::format("scale is {} and type is {}; accepted with e4m3 and i8 alone",
                               to_string(scale), name(type)));
    }
    check.view("scale", scale);
    check_rows(check, "scale", scale, x, x.rank - 1);
    if (scale.dtype != DType::f32) {
      check.refuse(fmt::format("scale is {}; accepted is f32", to_string(scale)));
    }
  }
  check.disjoint({outputs, scale.given() ? std::size_t{2} : std::size_t{1}}, inputs);
}

float scale_of(const std::vector<double>& row, CacheType type) {
  double largest = 0;
  for (const double value : row) largest = std::max(largest, std::abs(value));
  return largest == 0 ? 1 : static_cast<float>(largest / (type == CacheType::e4m3 ? 448 : 127));
}

}  // namespace

void quantize(const Tensor& x, CacheType type, const Tensor& to, const Tensor& scale) {
  check_arguments(x, type, to, scale);
  const std::int64_t dim = x.shape[last_of(x)];
  const std::int64_t rows = dim == 0 ? 0 : x.size() / dim;
  std::vector<double> values(static_cast<std::size_t>(dim));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t from = 0, into = 0, at_scale = 0;  // offsets in elements
    std::int64_t rest = row;
    for (std::size_t axis = last_of(x); axis-- > 0;) {
      const std::int64_t index = rest % x.shape[axis];
      rest /= x.shape[axis];
      from += index * x.strides[axis];
      into += index * to.strides[axis];
      at_scale += index * scale.strides[axis];
    }
    const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
    for (std::int64_t i = 0; i < dim; ++i) {
      values[static_cast<std::size_t>(i)] =
          core::load_element(static_cast<std::byte*>(x.data) + (from + i) * bytes, x.dtype);
    }
    float factor = 1;
    if (scale.given()) {
      factor = scale_of(values, type);
      static_cast<float*>(scale.data)[at_scale] = factor;
    }
    core::store_cached_row(
        static_cast<std::byte*>(to.data) + into * static_cast<std::int64_t>(size_of(to.dtype)),
        values.data(), dim, type, double{factor});
  }
}

}  // namespace attn
