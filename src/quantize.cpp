// attn::quantize: rows of floating numbers to the types of caches.
#include "cuda/quantize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "attn/cache_type.hpp"
#include "attn/error.hpp"
#include "core/cached_rows.hpp"
#include "core/hadamard.hpp"
#include "core/tensor/element.hpp"
#include "core/validate/argument_check.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"

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

// Scales without those that rows share along dimensions of stride 0.
Tensor distinct(const Tensor& scale) {
  Tensor one = scale;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(scale.rank); ++axis) {
    if (scale.strides[axis] == 0) one.shape[axis] = std::min<std::int64_t>(scale.shape[axis], 1);
  }
  return one;
}

void check_on_gpu(const ArgumentCheck& check, const Tensor& x, CacheType type) {
  if (x.dtype == DType::f64 || type == CacheType::f64) {
    check.refuse(fmt::format("x is {} and type is {}; accepted on a GPU is no f64", to_string(x),
                             name(type)));
  }
  if (x.shape[last_of(x)] > cuda::kMostQuantizedColumns) {
    check.refuse(fmt::format("x is {}; accepted on a GPU are rows of up to {} elements",
                             to_string(x), cuda::kMostQuantizedColumns));
  }
}

void check_arguments(const Tensor& x, CacheType type, const Tensor& to, const Tensor& scale,
                     const QuantizeOptions& options) {
  const ArgumentCheck check(nullptr, x.device);
  if (type == CacheType::as_q || name(type) == "unknown") {
    check.refuse(fmt::format(
        "type is {}; accepted are f64, f32, bf16, f16, e4m3, e5m2, i8, q8_0 and q4_0", name(type)));
  }
  check.view("x", x);
  if (x.rank < 1 || !is_floating(x.dtype)) {
    check.refuse(fmt::format("x is {}; accepted are rows of f32, bf16, f16 and f64", to_string(x)));
  }
  check.contiguous_rows("x", x);
  const std::int64_t dim = x.shape[last_of(x)];
  if (!check.readable()) check_on_gpu(check, x, type);
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
  const core::NamedTensor outputs[] = {{"to", to}, {"scale", distinct(scale)}};
  if (scale.given()) {
    if (!core::is_scaled(type)) {
      check.refuse(fmt::format("scale is {} and type is {}; accepted with e4m3, e5m2 and i8 alone",
                               to_string(scale), name(type)));
    }
    check.view("scale", scale);
    check_rows(check, "scale", scale, x, x.rank - 1);
    if (scale.dtype != DType::f32) {
      check.refuse(fmt::format("scale is {}; accepted is f32", to_string(scale)));
    }
  }
  if (options.block < 1 || (options.block > 1 && (x.rank < 3 || !scale.given()))) {
    check.refuse(
        fmt::format("block is {}, x is {} and scale is {}; accepted are 1, and more for x of [..., "
                    "seqlen, heads, head_dim] with a scale",
                    options.block, to_string(x), to_string(scale)));
  }
  check.disjoint({outputs, scale.given() ? std::size_t{2} : std::size_t{1}}, inputs);
}

float scale_of(double largest, CacheType type) {
  return largest == 0 ? 1 : static_cast<float>(largest / core::largest_number(type));
}

class Rows {
 public:
  Rows(const Tensor& x, const Tensor& to, const Tensor& scale, const QuantizeOptions& options)
      : x_(x), to_(to), scale_(scale), options_(options), dim_(x.shape[last_of(x)]) {}

  std::int64_t count() const { return dim_ == 0 ? 0 : x_.size() / dim_; }
  // Where row `row` lies, in elements; the scale of the first row of its block stands for all.
  struct Place {
    std::int64_t from = 0, to = 0, scale = 0, shared_scale = 0;
  };
  Place place(std::int64_t row) const {
    Place at;
    const std::size_t sequence = x_.rank < 3 ? last_of(x_) : last_of(x_) - 2;
    for (std::size_t axis = last_of(x_); axis-- > 0;) {
      const std::int64_t index = row % x_.shape[axis];
      row /= x_.shape[axis];
      at.from += index * x_.strides[axis];
      at.to += index * to_.strides[axis];
      at.scale += index * scale_.strides[axis];
      at.shared_scale += (axis == sequence ? index / options_.block * options_.block : index) *
                         scale_.strides[axis];
    }
    return at;
  }
  void load(std::int64_t from, std::vector<double>& values) const {
    const auto bytes = static_cast<std::int64_t>(size_of(x_.dtype));
    values.resize(static_cast<std::size_t>(dim_));
    for (std::int64_t i = 0; i < dim_; ++i) {
      double& value = values[static_cast<std::size_t>(i)];
      value = core::load_element(static_cast<std::byte*>(x_.data) + (from + i) * bytes, x_.dtype);
      if (options_.rotation && core::negates_column(*options_.rotation, i)) value = -value;
    }
    if (options_.rotation) core::hadamard<double>(values, core::hadamard_size(dim_));
  }

 private:
  const Tensor& x_;
  const Tensor& to_;
  const Tensor& scale_;
  const QuantizeOptions& options_;
  std::int64_t dim_;
};

}  // namespace

void quantize(const Tensor& x, CacheType type, const Tensor& to, const Tensor& scale,
              const QuantizeOptions& options, const Context& context) {
  check_arguments(x, type, to, scale, options);
  if (x.device.type == DeviceType::cuda) {
    const core::NamedTensor tensors[] = {{"x", x}, {"to", to}, {"scale", scale}};
    const cuda::ContextGuard guard(x.device.index);
    cuda::check_memory(ArgumentCheck(nullptr, x.device), tensors, x.device.index);
    return cuda::quantize({x, to, scale, type, options}, context);
  }
  const Rows rows(x, to, scale, options);
  std::vector<double> values;
  std::unordered_map<std::int64_t, double> largest;  // by the place of the scale
  for (std::int64_t row = 0; scale.given() && row < rows.count(); ++row) {
    const Rows::Place at = rows.place(row);
    rows.load(at.from, values);
    double& most = largest[at.shared_scale];
    for (const double value : values) most = std::max(most, std::abs(value));
  }
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const Rows::Place at = rows.place(row);
    rows.load(at.from, values);
    float factor = 1;
    if (scale.given()) {
      factor = scale_of(largest.at(at.shared_scale), type);
      static_cast<float*>(scale.data)[at.scale] = factor;
    }
    core::store_cached_row(
        static_cast<std::byte*>(to.data) + at.to * static_cast<std::int64_t>(size_of(to.dtype)),
        values.data(), static_cast<std::int64_t>(values.size()), type, double{factor});
  }
}

}  // namespace attn
