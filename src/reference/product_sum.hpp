// Rows of matrix products, in the arithmetic of the reference or as tensor cores add.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reference/matrix.hpp"
#include "reference/tensor_core.hpp"

namespace attn::reference {

// y += a x for rows x of n elements, one after the other: in Real, or as tensor cores add.
template <class Real>
class ProductSum {
 public:
  ProductSum(Real* y, std::int64_t n, bool tensor_core)
      : y_(y), n_(n), tensor_core_(tensor_core && std::is_same_v<Real, float>) {}

  // x stays as it is until finish().
  void add(Real a, const Real* x) {
    if (!tensor_core_) return add_scaled(y_, a, x, n_);
    a_[static_cast<std::size_t>(terms_)] = a;
    x_[static_cast<std::size_t>(terms_)] = x;
    if (++terms_ == kTerms) finish();
  }
  // y is the sum from here on.
  void finish() {
    if constexpr (std::is_same_v<Real, float>) {
      if (terms_ == 0) return;
      std::array<float, kTerms> column;
      for (std::int64_t c = 0; c < n_; ++c) {
        for (std::size_t k = 0; k < static_cast<std::size_t>(terms_); ++k) column[k] = x_[k][c];
        y_[c] = tensor_core_sum(y_[c], a_.data(), column.data(), terms_);
      }
      terms_ = 0;
    }
  }

 private:
  static constexpr int kTerms = kTensorCore16.terms;
  Real* y_;
  std::int64_t n_;
  bool tensor_core_;
  int terms_ = 0;
  std::array<Real, kTerms> a_{};
  std::array<const Real*, kTerms> x_{};
};

}  // namespace attn::reference
