#include "harness/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "harness/storage.hpp"

namespace attn::harness {
namespace {

using Index = std::array<std::int64_t, kMaxRank>;

// f(index) for all elements in row-major order until it returns false.
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

std::vector<std::int64_t> coordinates(const Tensor& tensor, const Index& index) {
  return {index.begin(), index.begin() + tensor.rank};
}

double allowed_error(const Comparison& c) {
  return 2 * c.standard_error + half_ulp(c.dtype, c.largest);
}

}  // namespace

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

double standard_error(const Tensor& standard, const Tensor& expected) {
  double worst = 0;
  for_each_index(standard, [&](const Index& index) {
    const double error = std::abs(load_element(standard, offset(standard, index)) -
                                  load_element(expected, offset(expected, index)));
    if (std::isfinite(error)) worst = std::max(worst, error);
    return true;
  });
  return worst;
}

Comparison compare(std::string name, const Tensor& got, const Tensor& expected,
                   const Tensor& standard) {
  return compare(std::move(name), got, expected, standard_error(standard, expected));
}

Comparison compare(std::string name, const Tensor& got, const Tensor& expected,
                   double standard_error) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Comparison result{
      .tensor = std::move(name), .dtype = got.dtype, .standard_error = standard_error};
  result.error = -1;  // so that the first element sets the coordinates
  for_each_index(got, [&](const Index& index) {
    const double want = load_element(expected, offset(expected, index));
    if (std::isnan(want)) return true;
    const double have = load_element(got, offset(got, index));
    double error = std::abs(have - want);
    if (std::isinf(want)) {
      error = have == want ? 0 : kInfinity;
    } else {
      if (!std::isfinite(have)) error = kInfinity;
      result.largest = std::max(result.largest, std::abs(want));
    }
    if (error > result.error) {
      result.error = error;
      result.where = coordinates(got, index);
      result.expected = want;
      result.got = have;
    }
    return true;
  });
  result.error = std::max(result.error, 0.0);
  result.allowed = allowed_error(result);
  return result;
}

void merge(Comparison& into, const Comparison& other) {
  const double standard_error = std::max(into.standard_error, other.standard_error);
  const double largest = std::max(into.largest, other.largest);
  if (other.error > into.error) into = other;
  into.standard_error = standard_error;
  into.largest = largest;
  into.allowed = allowed_error(into);
}

std::vector<std::int64_t> first_difference(const Tensor& a, const Tensor& b) {
  std::vector<std::int64_t> where;
  const auto bytes = static_cast<std::int64_t>(size_of(a.dtype));
  for_each_index(a, [&](const Index& index) {
    const auto* x = static_cast<const std::byte*>(a.data) + offset(a, index) * bytes;
    const auto* y = static_cast<const std::byte*>(b.data) + offset(b, index) * bytes;
    if (std::memcmp(x, y, static_cast<std::size_t>(bytes)) == 0) return true;
    where = coordinates(a, index);
    return false;
  });
  return where;
}

std::string to_string(const Comparison& c) {
  return fmt::format("{:<6} error {:.3g} at [{}] (expected {:.9g}, got {:.9g}), allowed {:.3g}",
                     c.tensor, c.error, fmt::join(c.where, ", "), c.expected, c.got, c.allowed);
}

}  // namespace attn::harness
