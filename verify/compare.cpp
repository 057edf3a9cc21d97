#include "verify/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

namespace attn::verify {
namespace {

// f(index) for all elements in row-major order until it returns false.
using Index = std::array<std::int64_t, kMaxRank>;
template <class F>
void for_each_index(const Tensor& tensor, F&& f) {
  Index index{};
  for (std::int64_t count = tensor.size(); count > 0; --count) {
    if (!f(index)) return;
    for (auto axis = static_cast<std::size_t>(tensor.rank); axis-- > 0;) {
      if (++index[axis] < tensor.shape[axis]) break;
      index[axis] = 0;
    }
  }
}

std::int64_t offset(const Tensor& tensor, const Index& index) {
  std::int64_t sum = 0;
  for (std::size_t axis = 0; axis < kMaxRank; ++axis) sum += index[axis] * tensor.strides[axis];
  return sum;
}

template <class T>
double as_double(T value) {
  if constexpr (std::is_same_v<T, float16>) {
    // A table of all 65536 values: half of what a comparison in f16 took was this conversion.
    static const auto all = [] {
      std::vector<float> values(1 << 16);
      for (std::size_t bits = 0; bits < values.size(); ++bits) {
        float16 x;
        x.bits = static_cast<std::uint16_t>(bits);
        values[bits] = static_cast<float>(x);
      }
      return values;
    }();
    return all[value.bits];
  } else if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<float>(value);
  }
}

template <class T>
void read_as(const Tensor& tensor, std::vector<double>& to) {
  const auto last = static_cast<std::size_t>(tensor.rank) - 1;
  Tensor rows = tensor;  // one element of each
  rows.shape[last] = std::min<std::int64_t>(tensor.shape[last], 1);
  to.resize(static_cast<std::size_t>(tensor.size()));
  double* next = to.data();
  for_each_index(rows, [&](const Index& index) {
    const T* row = static_cast<const T*>(tensor.data) + offset(tensor, index);
    for (std::int64_t c = 0; c < tensor.shape[last]; ++c) {
      T value;
      std::memcpy(&value, row + c * tensor.strides[last], sizeof(T));
      *next++ = as_double(value);
    }
    return true;
  });
}

double allowed_error(const Comparison& c) {
  return 2 * c.standard_error + half_ulp(c.dtype, c.largest);
}

// The least number that becomes infinity when it is rounded: half a unit past the largest.
double rounds_to_infinity(DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double largest = dtype == DType::f16   ? 65504
                         : dtype == DType::f64 ? kInfinity
                         : dtype == DType::f32 ? double{std::numeric_limits<float>::max()}
                                               : 0x1.fep127;
  return largest + (dtype == DType::f64 ? 0 : half_ulp(dtype, largest));
}

double share_of(double error, double allowed) {
  if (error == 0) return 0;
  return error / std::max(allowed, std::numeric_limits<double>::min());
}

}  // namespace

double Comparison::share() const {
  return std::max({share_of(error, allowed), share_of(element.error, element.allowed),
                   share_of(std::abs(gain), gain_allowed)});
}

double element_error(DType dtype, double got, double expected) {
  const bool same = std::isnan(expected) ? std::isnan(got) : got == expected;
  if (same) return 0;
  if (std::isinf(got) && got * expected > 0 && std::abs(expected) >= rounds_to_infinity(dtype)) {
    return 0;
  }
  if (!std::isfinite(expected) || !std::isfinite(got)) {
    return std::numeric_limits<double>::infinity();
  }
  return std::abs(got - expected);
}

double half_ulp(DType dtype, double value) {
  struct Format {
    int digits;        // of the significand, the hidden one included
    int min_exponent;  // of the smallest normal number
  };
  const Format format = dtype == DType::f64    ? Format{53, -1022}
                        : dtype == DType::f32  ? Format{24, -126}
                        : dtype == DType::bf16 ? Format{8, -126}
                                               : Format{11, -14};
  int exponent = format.min_exponent;
  if (value != 0) exponent = std::max(exponent, std::ilogb(value));
  return std::ldexp(1.0, exponent - format.digits);
}

std::vector<std::int64_t> Elements::coordinates(std::size_t element) const {
  std::vector<std::int64_t> where(shape.size());
  auto rest = static_cast<std::int64_t>(element);
  for (std::size_t axis = shape.size(); axis-- > 0; rest /= shape[axis]) {
    where[axis] = rest % shape[axis];
  }
  return where;
}

Elements read_elements(const Tensor& tensor) {
  Elements out{.dtype = tensor.dtype,
               .shape = {tensor.shape.begin(), tensor.shape.begin() + tensor.rank}};
  switch (tensor.dtype) {
    case DType::f64:
      read_as<double>(tensor, out.values);
      break;
    case DType::bf16:
      read_as<bfloat16>(tensor, out.values);
      break;
    case DType::f16:
      read_as<float16>(tensor, out.values);
      break;
    case DType::f32:
    case DType::i32:
    case DType::i64:
    case DType::u8:
      read_as<float>(tensor, out.values);
      break;
  }
  return out;
}

double standard_error(const Elements& standard, const Elements& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < standard.values.size(); ++i) {
    const double error = std::abs(standard.values[i] - expected.values[i]);
    if (std::isfinite(error)) worst = std::max(worst, error);
  }
  return worst;
}

Comparison compare(std::string name, const Tensor& got, const Tensor& expected,
                   const Tensor& standard) {
  const Elements want = read_elements(expected);
  return compare(std::move(name), read_elements(got), want,
                 standard_error(read_elements(standard), want));
}

Comparison compare(std::string name, const Tensor& got, const Tensor& expected,
                   double standard_error) {
  return compare(std::move(name), read_elements(got), read_elements(expected), standard_error);
}

Comparison compare(std::string name, const Elements& got, const Elements& expected,
                   double standard_error) {
  Comparison result{
      .tensor = std::move(name), .dtype = got.dtype, .standard_error = standard_error};
  std::size_t worst = 0;
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const double want = expected.values[i];
    const double error = element_error(got.dtype, got.values[i], want);
    if (std::isfinite(want)) result.largest = std::max(result.largest, std::abs(want));
    if (error > result.error) {
      result.error = error;
      worst = i;
    }
  }
  if (!got.values.empty()) {
    result.where = got.coordinates(worst);
    result.expected = expected.values[worst];
    result.got = got.values[worst];
  }
  result.allowed = allowed_error(result);
  return result;
}

void merge(Comparison& into, const Comparison& other) {
  const Comparison::Element element = into.element;
  const double gain = into.gain, gain_allowed = into.gain_allowed;
  const double standard_error = std::max(into.standard_error, other.standard_error);
  const double largest = std::max(into.largest, other.largest);
  if (other.error > into.error) into = other;
  into.standard_error = standard_error;
  into.largest = largest;
  into.allowed = allowed_error(into);
  into.element = element;
  into.gain = gain;
  into.gain_allowed = gain_allowed;
}

std::vector<std::int64_t> first_difference(const Tensor& a, const Tensor& b) {
  std::vector<std::int64_t> where;
  const auto bytes = static_cast<std::int64_t>(size_of(a.dtype));
  for_each_index(a, [&](const Index& index) {
    const auto* x = static_cast<const std::byte*>(a.data) + offset(a, index) * bytes;
    const auto* y = static_cast<const std::byte*>(b.data) + offset(b, index) * bytes;
    if (std::memcmp(x, y, static_cast<std::size_t>(bytes)) == 0) return true;
    where.assign(index.begin(), index.begin() + a.rank);
    return false;
  });
  return where;
}

std::string to_string(const Comparison& c) {
  const double share = c.share();
  if (share > 0 && share == share_of(std::abs(c.gain), c.gain_allowed)) {
    return fmt::format("{:<6} times {:.9g}, allowed is a factor off by {:.3g}", c.tensor,
                       1 + c.gain, c.gain_allowed);
  }
  const bool of_element = share > share_of(c.error, c.allowed);
  const Comparison::Element worst =
      of_element ? c.element : Comparison::Element{c.error, c.allowed, c.where, c.expected, c.got};
  return fmt::format("{:<6} error {:.3g} at [{}] (expected {:.9g}, got {:.9g}), allowed {:.3g}{}",
                     c.tensor, worst.error, fmt::join(worst.where, ", "), worst.expected, worst.got,
                     worst.allowed, of_element ? " there" : "");
}

}  // namespace attn::verify
