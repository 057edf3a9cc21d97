// Comparing a tensor with the reference under the error rule (docs/numerics.md), and bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/tensor.hpp"

namespace attn::verify {

// The elements of a floating tensor in row-major order.
struct Elements {
  DType dtype = DType::f64;
  std::vector<std::int64_t> shape{};
  std::vector<double> values{};
  std::vector<std::int64_t> coordinates(std::size_t element) const;
};
Elements read_elements(const Tensor& tensor);

// The error rule for one tensor, over one or several draws of its inputs. `standard` is standard
// attention in the precision of the problem.
//   largest: max |got - expected| <= 2 max |standard - expected| + half a unit in the last place of
//            max |expected|
//   element: |got - expected| <= 2 u scale + half a unit in the last place of expected
//   gain:    |sum (got - nearest) expected| / sum expected^2 <= what yardstick and rounding
//            explain; nearest is `expected` in the type of got
// The last two need the scale of each element (error_scale.hpp) and are not judged without. Where
// `expected` is infinite or NaN, `got` must be the same; such elements are left out of maxima and
// sums.
struct Comparison {
  std::string tensor;  // "o", "lse", "dq", ...
  DType dtype = DType::f32;
  double error = 0;  // max |got - expected|; infinite where got is NaN or wrongly infinite
  double standard_error = 0;
  double largest = 0;  // max |expected|
  double allowed = 0;
  std::vector<std::int64_t> where{};  // of `error`
  double expected = 0, got = 0;       // there

  struct Element {  // with the largest share of what it is allowed
    double error = 0, allowed = 0;
    std::vector<std::int64_t> where{};
    double expected = 0, got = 0;
  } element{};
  double gain = 0, gain_allowed = 0;

  // The largest share that one of the three takes of what it is allowed; 1 or less passes.
  double share() const;
  bool passed() const { return share() <= 1; }
};

// expected: f64 of the shape of got.
Comparison compare(std::string name, const Tensor& got, const Tensor& expected,
                   double standard_error);
// Takes the result of the yardstick, f64, in place of its error.
Comparison compare(std::string name, const Tensor& got, const Tensor& expected,
                   const Tensor& standard);
// Takes tensors that are already read.
Comparison compare(std::string name, const Elements& got, const Elements& expected,
                   double standard_error);
// max |standard - expected| over the elements that are finite in both.
double standard_error(const Elements& standard, const Elements& expected);
// Adds another draw: maxima over both. `element` and `gain` stay.
void merge(Comparison& into, const Comparison& other);

// |got - expected| of a result in dtype; 0 where both are the same infinity or both NaN, or where
// got is the infinity that expected rounds to (1e39 in f32); infinite where one alone is.
double element_error(DType dtype, double got, double expected);

// Half a unit in the last place of `value` in dtype: the largest error of rounding to it.
double half_ulp(DType dtype, double value);

// Index of the first element whose bits differ; empty when none does. Same shape and dtype.
std::vector<std::int64_t> first_difference(const Tensor& a, const Tensor& b);

std::string to_string(const Comparison& comparison);

}  // namespace attn::verify
