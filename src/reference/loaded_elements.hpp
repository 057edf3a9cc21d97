// The elements of a buffer that a score reads, and the tensor that their gradients go to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attn/expr.hpp"
#include "attn/problem.hpp"
#include "attn/tensor.hpp"
#include "reference/matrix.hpp"

namespace attn::reference {

class LoadedElements {
 public:
  LoadedElements(const Problem& problem, const std::string& name, const Tensor& tensor)
      : to_(tensor), loads_(expr::load_derivatives(problem.score, name)) {}

  // The score's loads of the buffer, with its derivatives by them.
  const std::vector<expr::LoadDerivative>& loads() const { return loads_; }

  // f(element, which of loads()) for each load that is inside the buffer at this point; elements
  // count in row-major order. Example: bias[head, key] of shape [2, 10] at head 1, key 3 is
  // element 13.
  template <class F>
  void visit(const expr::Point& at, const expr::Bindings& buffers, F&& f) const {
    for (std::size_t which = 0; which < loads_.size(); ++which) {
      const expr::Expr& load = loads_[which].load;
      std::int64_t element = 0;
      bool inside = true;
      for (std::int32_t axis = 0; axis < to_.rank; ++axis) {
        const std::int64_t size = to_.shape[static_cast<std::size_t>(axis)];
        const expr::Expr& argument = load.node().args[static_cast<std::size_t>(axis)];
        // double holds every int32
        auto index = static_cast<std::int64_t>(expr::evaluate<double>(argument, at, buffers));
        if (size == 1) index = 0;
        inside = inside && index >= 0 && index < size;
        element = element * size + index;
      }
      if (inside) f(static_cast<std::size_t>(element), which);
    }
  }

  // values: one for each element.
  template <class Real>
  void store(const std::vector<Real>& values) const {
    for (std::int64_t element = 0; element < to_.size(); ++element) {
      std::int64_t offset = 0;
      std::int64_t rest = element;
      for (auto axis = static_cast<std::size_t>(to_.rank); axis-- > 0;) {
        offset += rest % to_.shape[axis] * to_.strides[axis];
        rest /= to_.shape[axis];
      }
      core::store_element(static_cast<std::byte*>(to_.data) +
                              offset * static_cast<std::int64_t>(size_of(to_.dtype)),
                          to_.dtype,
                          static_cast<double>(values[static_cast<std::size_t>(element)]));
    }
  }

 private:
  Tensor to_;
  std::vector<expr::LoadDerivative> loads_;
};

}  // namespace attn::reference
