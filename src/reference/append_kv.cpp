#include "reference/append_kv.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/cache_type.hpp"
#include "core/cached_rows.hpp"
#include "core/hadamard.hpp"
#include "core/tensor/element.hpp"

namespace attn::reference {
namespace {

double element_of(const Tensor& t, std::int64_t element) {
  return core::load_element(
      static_cast<const std::byte*>(t.data) + element * static_cast<std::int64_t>(size_of(t.dtype)),
      t.dtype);
}

// Cosine and sine of pair i.
template <class Real>
std::pair<Real, Real> rotation(const AppendInputs& in, std::int64_t position, std::int64_t i) {
  if (in.inv_freq.given()) {
    const double angle = static_cast<double>(position) * element_of(in.inv_freq, i);
    return {static_cast<Real>(std::cos(angle)), static_cast<Real>(std::sin(angle))};
  }
  return {static_cast<Real>(element_of(in.cos, position * in.cos.strides[0] + i)),
          static_cast<Real>(element_of(in.sin, position * in.sin.strides[0] + i))};
}

template <class Real>
std::vector<double> transformed(const core::AppendCall& call, const core::AppendPart& part,
                                const core::AppendRow& row, std::int64_t head) {
  const std::int64_t dim = part.dim();
  const std::byte* const from = core::AppendRows(part.from, call.packed).at(row.row, head);
  std::vector<Real> x(static_cast<std::size_t>(dim));
  const auto at = [&x](std::int64_t i) -> Real& { return x[static_cast<std::size_t>(i)]; };
  for (std::int64_t i = 0; i < dim; ++i) {
    at(i) = static_cast<Real>(core::load_element(
        from + i * static_cast<std::int64_t>(size_of(part.from.dtype)), part.from.dtype));
  }
  if (part.norm) {
    Real squares = 0;
    for (const Real value : x) squares += value * value;
    const Real root =
        std::sqrt(squares / static_cast<Real>(dim) + static_cast<Real>(call.norm_eps));
    for (std::int64_t i = 0; i < dim; ++i) {
      at(i) = at(i) / root;
      if (part.weight.given()) at(i) *= static_cast<Real>(element_of(part.weight, i));
    }
  }
  const std::int64_t pairs = part.rope ? call.rope_dim / 2 : 0;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const auto [cos, sin] = rotation<Real>(call.inputs, row.rope_position, i);
    Real& first = at(call.interleaved ? 2 * i : i);
    Real& second = at(call.interleaved ? 2 * i + 1 : pairs + i);
    const Real a = first, b = second;
    first = a * cos - b * sin;
    second = a * sin + b * cos;
  }
  core::hadamard<Real>(x, part.hadamard ? core::hadamard_size(dim) : 1);
  return {x.begin(), x.end()};
}

}  // namespace

std::vector<double> append_row(const core::AppendCall& call, const core::AppendPart& part,
                               const core::AppendRow& row, std::int64_t head, Precision precision) {
  return precision == Precision::f64 ? transformed<double>(call, part, row, head)
                                     : transformed<float>(call, part, row, head);
}

float store_appended_row(const core::AppendPart& part, const std::vector<double>& values,
                         std::int64_t head, std::byte* to) {
  float scale = 1;
  if (part.writes_scale) {
    double largest = 0;
    for (const double value : values) largest = std::max(largest, std::abs(value));
    if (largest > 0) {
      scale = static_cast<float>(largest / core::largest_number(part.type));
    }
  } else {
    scale = core::given_scale(part, head);
  }
  core::store_cached_row(to, values.data(), part.dim(), part.type, double{scale});
  return scale;
}

void append_kv(const core::AppendCall& call) {
  for (const core::AppendRow& row : core::append_rows(call)) {
    for (const core::AppendPart& part : call.parts()) {
      if (part.cached && row.place == core::kNoPlace) continue;
      const core::AppendRows to(part.to, !part.cached && call.packed);
      for (std::int64_t head = 0; head < part.heads(); ++head) {
        const std::int64_t at = part.cached ? row.place : row.row;
        const float scale =
            store_appended_row(part, append_row(call, part, row, head), head, to.at(at, head));
        if (part.writes_scale) {
          *reinterpret_cast<float*>(core::AppendRows(part.scale, false).at(at, head)) = scale;
        }
      }
    }
  }
}

}  // namespace attn::reference
