// Rows of matrix products, in the arithmetic of the reference or as tensor cores add.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "reference/matrix.hpp"
#include "reference/tensor_core.hpp"
#include "reference/tensor_core_sums.hpp"

namespace attn::reference {

// y += a x for rows x of n elements, one after the other: in Real, or as a tensor core adds, which
// is null of a Real other than float. part: over how many terms a tensor core adds; sums of these
// are added in float. 0: over all.
template <class Real>
class ProductSum {
 public:
  ProductSum(Real* y, std::int64_t n, const TensorCore* tensor_core, std::int64_t part = 0)
      : y_(y),
        n_(n),
        tensor_core_(std::is_same_v<Real, float> ? tensor_core : nullptr),
        part_(part) {
    if (tensor_core_ != nullptr && part_ > 0) sums_.resize(static_cast<std::size_t>(n));
  }

  // x stays as it is until finish().
  void add(Real a, const Real* x) {
    if (tensor_core_ == nullptr) return add_scaled(y_, a, x, n_);
    a_[static_cast<std::size_t>(terms_)] = a;
    x_[static_cast<std::size_t>(terms_)] = x;
    if (++terms_ == tensor_core_->terms) add_terms();
    if (++of_part_ == part_) finish();
  }
  // y is the sum from here on.
  void finish() {
    add_terms();
    for (std::size_t c = 0; c < sums_.size(); ++c) {
      y_[c] += sums_[c];
      sums_[c] = 0;
    }
    of_part_ = 0;
  }

 private:
  void add_terms() {
    if constexpr (std::is_same_v<Real, float>) {
      if (terms_ == 0) return;
      float* const to = sums_.empty() ? y_ : sums_.data();
      tensor_core_sums(to, n_, a_.data(), x_.data(), terms_, *tensor_core_);
      terms_ = 0;
    }
  }

  static constexpr int kMostTerms = std::max(kTensorCore16.terms, kTensorCore8.terms);
  Real* y_;
  std::int64_t n_;
  const TensorCore* tensor_core_;
  std::int64_t part_, of_part_ = 0;
  std::vector<Real> sums_;  // of a part
  int terms_ = 0;
  std::array<Real, kMostTerms> a_{};
  std::array<const Real*, kMostTerms> x_{};
};

}  // namespace attn::reference
