#include "attn/softmax.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "core/validate/argument_check.hpp"

namespace attn {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Of one row: the maximum and the sum of exponentials relative to it. Without a finite element m =
// 0 and d = 0, so that -inf gives exp(-inf - 0) = 0 and NaN still comes through.
struct Statistics {
  float m = 0;
  float d = 0;
};

// Safe softmax (Milakov and Gimelshein 2018, algorithm 2), the first two passes.
Statistics two_passes(const float* x, std::int64_t columns) {
  float m = kMinusInfinity;
  for (std::int64_t j = 0; j < columns; ++j) {
    if (x[j] > m) m = x[j];
  }
  if (m == kMinusInfinity) m = 0;
  double d = 0;
  for (std::int64_t j = 0; j < columns; ++j) d += std::exp(x[j] - m);
  return {m, static_cast<float>(d)};
}

// Online softmax (the same paper, algorithm 3), the first pass: the sum is rescaled when the
// maximum moves, by exp(m_before - m).
Statistics one_pass(const float* x, std::int64_t columns) {
  float m = kMinusInfinity;
  double d = 0;
  for (std::int64_t j = 0; j < columns; ++j) {
    if (x[j] == kMinusInfinity) continue;  // adds nothing; -inf - -inf would be NaN
    const float m_before = m;
    if (x[j] > m) m = x[j];
    d = d * std::exp(m_before - m) + std::exp(x[j] - m);
  }
  if (m == kMinusInfinity) m = 0;
  return {m, static_cast<float>(d)};
}

void softmax_row(const float* x, float* y, std::int64_t columns, const Statistics& s) {
  for (std::int64_t j = 0; j < columns; ++j) y[j] = s.d == 0 ? 0 : std::exp(x[j] - s.m) / s.d;
}

}  // namespace

void softmax(const Tensor& x, const Tensor& y, const Tensor& lse, SoftmaxAlgorithm algorithm) {
  const core::ArgumentCheck check;
  check.tensor("x", x, DType::f32, {core::kAnySize, core::kAnySize});
  check.contiguous_rows("x", x);
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  check.tensor("y", y, DType::f32, {rows, columns});
  check.contiguous_rows("y", y);
  if (lse.given()) check.tensor("lse", lse, DType::f32, {rows});
  const bool in_place = x.data == y.data && (rows <= 1 || x.strides[0] == y.strides[0]);
  const core::NamedTensor written[] = {{"y", y}, {"lse", lse}};
  const core::NamedTensor read[] = {{"x", x}};
  // In place only LSE has to lie apart from x.
  check.disjoint(written, std::span(read).first(in_place ? 0 : 1));
  check.disjoint(std::span(written).last(1), read);

  for (std::int64_t i = 0; i < rows; ++i) {
    const float* x_row = static_cast<const float*>(x.data) + i * x.strides[0];
    float* y_row = static_cast<float*>(y.data) + i * y.strides[0];
    const Statistics s = algorithm == SoftmaxAlgorithm::three_pass ? two_passes(x_row, columns)
                                                                   : one_pass(x_row, columns);
    softmax_row(x_row, y_row, columns, s);
    if (lse.given()) static_cast<float*>(lse.data)[i * lse.strides[0]] = s.m + std::log(s.d);
  }
}

}  // namespace attn
