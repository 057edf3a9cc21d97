// Comparing a tensor with the reference under the error rule (docs/numerics.md), and bit by bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/tensor.hpp"

namespace attn::harness {

// The error rule for one tensor, over one or several draws of its inputs:
//   max |got - expected| <= 2 max |standard - expected| + half a unit in the last place of max
//   |expected|
// `standard` is standard attention in the precision of the problem. Elements that are infinite in
// `expected` must be the same infinity in `got` and are left out of the maxima; NaN is never
// accepted.
struct Comparison {
  std::string tensor;  // "o", "lse", "dq", ...
  DType dtype = DType::f32;
  double error = 0;  // max |got - expected|; infinite where got is NaN or wrongly infinite
  double standard_error = 0;
  double largest = 0;  // max |expected|
  double allowed = 0;
  std::vector<std::int64_t> where{};  // of `error`
  double expected = 0, got = 0;       // there
  bool passed() const { return error <= allowed; }
};

// expected: f64 of the shape of got. An element that is NaN in `expected` belongs to no sequence:
// not compared.
Comparison compare(std::string name, const Tensor& got, const Tensor& expected,
                   double standard_error);
// The same with the yardstick's result, f64.
Comparison compare(std::string name, const Tensor& got, const Tensor& expected,
                   const Tensor& standard);
// max |standard - expected| over the elements that are finite in both.
double standard_error(const Tensor& standard, const Tensor& expected);
// Adds another draw: maxima over both.
void merge(Comparison& into, const Comparison& other);

// Half a unit in the last place of `value` in dtype: the largest error of rounding to it.
double half_ulp(DType dtype, double value);

// Index of the first element whose bits differ; empty when none does. Same shape and dtype.
std::vector<std::int64_t> first_difference(const Tensor& a, const Tensor& b);

std::string to_string(const Comparison& comparison);

}  // namespace attn::harness
