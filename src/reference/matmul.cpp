#include "reference/matmul.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/float8.hpp"
#include "core/matmul.hpp"
#include "core/tensor/element.hpp"
#include "reference/tensor_core.hpp"

namespace attn::reference {
namespace {

// An element of A or B.
double load(const std::byte* at, const MatmulProblem& p) {
  if (p.float8 == Float8::none) return core::load_element(at, p.dtype);
  return core::float8_value(std::to_integer<std::uint8_t>(*at), p.float8);
}

// Scales, bias and activation of the sum.
Element finished(const MatmulProblem& p, const MatmulInputs& inputs, std::int64_t column,
                 Element e) {
  if (p.scaled) {
    const double scale =
        core::load_element(static_cast<const std::byte*>(inputs.scale_a.data), DType::f32) *
        core::load_element(static_cast<const std::byte*>(inputs.scale_b.data), DType::f32);
    e.value *= scale;
    e.magnitude *= std::abs(scale);
  }
  if (p.bias) {
    const auto* bias = static_cast<const std::byte*>(inputs.bias.data);
    const double x =
        core::load_element(bias + column * inputs.bias.strides[0] *
                                      static_cast<std::ptrdiff_t>(size_of(inputs.bias.dtype)),
                           inputs.bias.dtype);
    e.value += x;
    e.magnitude += std::abs(x);
  }
  e.value = core::activate(p.activation, e.value);
  return e;
}

}  // namespace

Element matmul_element(const MatmulProblem& p, const MatmulInputs& inputs, std::int64_t batch,
                       std::int64_t row, std::int64_t column) {
  const core::MatrixView a(inputs.a), b(inputs.b);
  const core::BlockMaskView mask(p, inputs);
  Element e;
  for (std::int64_t l = 0; l < p.k; ++l) {
    if (!mask.multiplies(row, l, column)) continue;
    const double product = load(a.at(batch, row, l), p) * load(b.at(batch, l, column), p);
    e.value += product;
    e.magnitude += std::abs(product);
  }
  return finished(p, inputs, column, e);
}

double matmul_element_float8(const MatmulProblem& p, const MatmulInputs& inputs, std::int64_t batch,
                             std::int64_t row, std::int64_t column) {
  constexpr int kTerms = kTensorCore8.terms;
  constexpr std::int64_t kTogether = 128;
  const core::MatrixView a(inputs.a), b(inputs.b);
  const core::BlockMaskView mask(p, inputs);
  float sum = 0, part = 0;
  for (std::int64_t first = 0; first < p.k; first += kTerms) {
    std::array<float, kTerms> x{}, y{};
    for (std::int64_t l = first; l < std::min(p.k, first + kTerms); ++l) {
      if (!mask.multiplies(row, l, column)) continue;
      const auto at = static_cast<std::size_t>(l - first);
      x[at] = static_cast<float>(load(a.at(batch, row, l), p));
      y[at] = static_cast<float>(load(b.at(batch, l, column), p));
    }
    part = tensor_core_sum(part, x.data(), y.data(), kTerms, kTensorCore8);
    if ((first + kTerms) % kTogether != 0 && first + kTerms < p.k) continue;
    sum += part;
    part = 0;
  }
  return finished(p, inputs, column, {sum, 0}).value;
}

void matmul(const MatmulProblem& p, const MatmulInputs& inputs, const Tensor& c) {
  const core::MatrixView out(c);
  const core::BlockMaskView mask(p, inputs);
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) {
        if (mask.of == core::BlockMaskView::Of::c && !mask.has(i, j)) continue;
        core::store_element(out.at(batch, i, j), c.dtype,
                            matmul_element(p, inputs, batch, i, j).value);
      }
    }
  }
}

}  // namespace attn::reference
