#include "reference/matmul.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/block_format.hpp"
#include "core/float8.hpp"
#include "core/matmul.hpp"
#include "core/tensor/element.hpp"
#include "reference/tensor_core.hpp"

namespace attn::reference {
namespace {

// An element of A or B, which is of this type where float8 is none.
double load(const std::byte* at, const MatmulProblem& p, DType dtype) {
  if (p.float8 == Float8::none) return core::load_element(at, dtype);
  return core::float8_value(std::to_integer<std::uint8_t>(*at), p.float8);
}

// A row of B, of which the distance between two columns is `stride` bytes.
void load_row(const std::byte* at, std::ptrdiff_t stride, const MatmulProblem& p,
              std::span<double> row) {
  const auto load_as = [&](auto number) {
    using Wide = std::conditional_t<std::is_same_v<decltype(number), bfloat16>, float, double>;
    for (double& x : row) {
      std::memcpy(&number, at, sizeof(number));
      x = static_cast<double>(static_cast<Wide>(number));
      at += stride;
    }
  };
  const DType dtype = p.type_of_b();
  if (p.float8 == Float8::none && dtype == DType::f32) return load_as(float{});
  if (p.float8 == Float8::none && dtype == DType::bf16) {
    return load_as(bfloat16{});
  }
  for (double& x : row) {
    x = load(at, p, dtype);
    at += stride;
  }
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

Element before(const core::MatrixView& c, std::int64_t batch, std::int64_t row,
               std::int64_t column) {
  const double value = core::load_element(c.at(batch, row, column), c.dtype);
  return {value, std::abs(value)};
}

void matmul_row(const MatmulProblem& p, const MatmulInputs& inputs, std::int64_t batch,
                std::int64_t row, std::int64_t column, std::span<Element> c) {
  const core::MatrixView a(inputs.a), b(inputs.b);
  const core::BlockMaskView mask(p, inputs);
  const auto columns = static_cast<std::int64_t>(c.size());
  const bool masked = mask.of != core::BlockMaskView::Of::none;
  const std::ptrdiff_t stride = b.at(0, 0, 1) - b.at(0, 0, 0);
  std::vector<double> of_b(c.size());
  if (!p.accumulate) std::fill(c.begin(), c.end(), Element{});
  for (std::int64_t l = 0; l < p.k; ++l) {
    const double x = load(a.at(batch, row, l), p, p.dtype);
    if (p.format_b == BlockFormat::none) {
      load_row(b.at(batch, l, column), stride, p, of_b);
    } else {
      for (std::int64_t j = 0; j < columns; ++j) {
        of_b[static_cast<std::size_t>(j)] =
            core::block_element(b.at(batch, 0, column + j), l, p.format_b);
      }
    }
    for (std::int64_t j = 0; j < columns;) {
      // The columns of a block are multiplied or left out together.
      const std::int64_t rest = mask.block - (column + j) % mask.block;
      const std::int64_t end = masked ? j + std::min(rest, columns - j) : columns;
      if (!mask.multiplies(row, l, column + j)) j = end;
      for (; j < end; ++j) {
        const double product = x * of_b[static_cast<std::size_t>(j)];
        Element& e = c[static_cast<std::size_t>(j)];
        e.value += product;
        e.magnitude += std::abs(product);
      }
    }
  }
  for (std::int64_t j = 0; j < columns; ++j) {
    Element& e = c[static_cast<std::size_t>(j)];
    e = finished(p, inputs, column + j, e);
  }
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
      x[at] = static_cast<float>(load(a.at(batch, row, l), p, p.dtype));
      y[at] = static_cast<float>(load(b.at(batch, l, column), p, p.dtype));
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
  std::vector<Element> row(static_cast<std::size_t>(p.n));
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; p.accumulate && j < p.n; ++j) {
        row[static_cast<std::size_t>(j)] = before(out, batch, i, j);
      }
      matmul_row(p, inputs, batch, i, 0, row);
      for (std::int64_t j = 0; j < p.n; ++j) {
        if (mask.of == core::BlockMaskView::Of::c && !mask.has(i, j)) continue;
        core::store_element(out.at(batch, i, j), c.dtype, row[static_cast<std::size_t>(j)].value);
      }
    }
  }
}

}  // namespace attn::reference
