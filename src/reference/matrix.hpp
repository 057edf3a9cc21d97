// Row-major matrices in the arithmetic of the reference, read from and written to rows of any dtype
// and layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/tensor.hpp"
#include "core/cached_rows.hpp"
#include "core/problem/rows.hpp"
#include "core/tensor/element.hpp"

namespace attn::reference {

// `value` as a matrix of this dtype would hold it.
template <class Real>
Real rounded(Real value, DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return static_cast<float>(bfloat16(static_cast<float>(value)));
    case DType::f16:
      return static_cast<float>(float16(static_cast<float>(value)));
    case DType::f32:
      return static_cast<float>(value);
    case DType::f64:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  return value;
}

template <class Real>
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<Real> data;

  Matrix(std::int64_t m, std::int64_t n)
      : rows(m), columns(n), data(static_cast<std::size_t>(m * n)) {}
  Real* operator[](std::int64_t i) { return data.data() + i * columns; }
  const Real* operator[](std::int64_t i) const { return data.data() + i * columns; }
};

// Rows of Q, K or V of one sequence, as they are stored.
struct CachedRows {
  core::Rows rows;
  CacheType type;
  core::Scales scales;
  DType round_to;  // of what is multiplied: what is of another type is converted to it first

  template <class Real>
  void load(std::int64_t i, std::int64_t head, std::int64_t columns, Real* to) const {
    const std::byte* const row = rows.row(i, head);
    const DType stored = storage_dtype(type);
    // What round_to holds exactly.
    if (!scales.given() && stored != DType::u8 &&
        (stored == round_to || size_of(stored) < size_of(round_to))) {
      return core::load_elements(row, stored, columns, to);
    }
    const double scale = scales.at(i, head);
    const bool same = type == core::cache_type(round_to);
    for (std::int64_t c = 0; c < columns; ++c) {
      const double element = core::cached_element(row, c, type);
      to[c] = static_cast<Real>(scales.given() ? element * scale : element);
      if (!same) to[c] = rounded(to[c], round_to);
    }
  }
};

// Rows [0, rows) of one head.
template <class Real>
Matrix<Real> load_matrix(const CachedRows& from, std::int64_t head, std::int64_t rows,
                         std::int64_t columns) {
  Matrix<Real> out(rows, columns);
  for (std::int64_t i = 0; i < rows; ++i) from.load(i, head, columns, out[i]);
  return out;
}
template <class Real>
Matrix<Real> load_matrix(const core::Rows& from, DType dtype, std::int64_t head, std::int64_t rows,
                         std::int64_t columns) {
  Matrix<Real> out(rows, columns);
  for (std::int64_t i = 0; i < rows; ++i) {
    core::load_elements(from.row(i, head), dtype, columns, out[i]);
  }
  return out;
}

// These rows of one head; zeros for those below 0, which are not read.
template <class Real>
Matrix<Real> load_rows(const CachedRows& from, std::int64_t head,
                       const std::vector<std::int64_t>& rows, std::int64_t columns) {
  Matrix<Real> out(static_cast<std::int64_t>(rows.size()), columns);
  for (std::int64_t i = 0; i < out.rows; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    if (row >= 0) from.load(row, head, columns, out[i]);
  }
  return out;
}

// Writes the matrix, then zeros up to row `capacity`.
template <class Real>
void store_matrix(const Matrix<Real>& matrix, const core::Rows& to, DType dtype, std::int64_t head,
                  std::int64_t capacity) {
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  for (std::int64_t i = 0; i < capacity; ++i) {
    std::byte* row = to.row(i, head);
    for (std::int64_t c = 0; c < matrix.columns; ++c) {
      core::store_element(row + c * bytes, dtype,
                          i < matrix.rows ? static_cast<double>(matrix[i][c]) : 0.0);
    }
  }
}

template <class Real>
Matrix<Real> transposed(const Matrix<Real>& m) {
  Matrix<Real> out(m.columns, m.rows);
  for (std::int64_t i = 0; i < m.rows; ++i) {
    for (std::int64_t j = 0; j < m.columns; ++j) out[j][i] = m[i][j];
  }
  return out;
}

// y += a x, n elements.
template <class Real>
void add_scaled(Real* y, Real a, const Real* x, std::int64_t n) {
  for (std::int64_t c = 0; c < n; ++c) y[c] += a * x[c];
}

}  // namespace attn::reference
