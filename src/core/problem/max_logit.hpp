// Outputs::max_logit while it is computed. Workers raise it at once: a maximum does not depend on
// their order, so it has the same bits for every number of threads.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attn/tensor.hpp"

namespace attn::core {

class MaxLogit {
 public:
  // f32 or f64, [heads_q], or not given: then nothing is done. It must outlive this.
  explicit MaxLogit(const Tensor& tensor) : tensor_(tensor) {}

  bool given() const { return tensor_.given(); }

  // Every head becomes -inf.
  void clear() const {
    if (!given()) return;
    for (std::int64_t head = 0; head < tensor_.shape[0]; ++head) {
      if (tensor_.dtype == DType::f64) {
        element<double>(head) = -std::numeric_limits<double>::infinity();
      } else {
        element<float>(head) = -std::numeric_limits<float>::infinity();
      }
    }
  }

  // The head has a score. NaN stays, and +inf is NaN, as the LSE of its row.
  void raise(std::int64_t head, double score) const {
    if (!given()) return;
    if (tensor_.dtype == DType::f64) {
      raise_element(element<double>(head), score);
    } else {
      raise_element(element<float>(head), static_cast<float>(score));
    }
  }

 private:
  template <class Real>
  Real& element(std::int64_t head) const {
    return static_cast<Real*>(tensor_.data)[head * tensor_.strides[0]];
  }
  template <class Real>
  static void raise_element(Real& element, Real score) {
    if (!(score < std::numeric_limits<Real>::infinity())) {
      score = std::numeric_limits<Real>::quiet_NaN();
    }
    score += Real{0};  // -0 is 0: which of them comes first must not be seen
    const std::atomic_ref<Real> to(element);
    Real before = to.load(std::memory_order_relaxed);
    while (!std::isnan(before) && !(score <= before)) {
      if (to.compare_exchange_weak(before, score, std::memory_order_relaxed)) return;
    }
  }

  const Tensor& tensor_;
};

}  // namespace attn::core
