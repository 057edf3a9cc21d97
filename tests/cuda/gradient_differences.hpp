// Gradients of a GPU beside those of the reference, where some are not finite.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cuda/gpu.hpp"
#include "reference/reference.hpp"
#include "verify/data.hpp"

namespace attn::cuda {

// Elements of two tensors that differ: by more than `near`, or in being finite. not_finite: of
// those wanted.
struct GradientDifferences {
  int wrong = 0, not_finite = 0;
  void add(const Tensor& got, const Tensor& want, double near, const char* name) {
    const verify::Elements x = verify::read_elements(got), y = verify::read_elements(want);
    for (std::size_t i = 0; i < x.values.size(); ++i) {
      const bool finite = std::isfinite(y.values[i]);
      not_finite += finite ? 0 : 1;
      const bool good =
          finite ? std::abs(x.values[i] - y.values[i]) <= near : !std::isfinite(x.values[i]);
      if (!good && wrong++ == 0) {
        ADD_FAILURE() << name << " of element " << i << " is " << x.values[i] << ", not "
                      << y.values[i];
      }
    }
  }
};

// dQ, dK and dV of the case by the kernel. What is not written shows, as results are poisoned.
// Gradients of buffers are left out beside lists of keys, which refuse them.
inline GradientDifferences gradient_differences(verify::CaseData& data, const std::string& kernel) {
  if (data.problem.key_list > 0) data.gradients.buffers.clear();
  const Outputs outputs = data.f64_outputs();
  const Gradients expected = data.f64_gradients();
  reference::forward(data.problem, data.inputs, outputs);
  reference::backward(data.problem, data.inputs, outputs, data.d_o, expected);
  data.poison();
  forward(data.problem, data.inputs, data.outputs);
  verify::backward_on_device(data, {.device = kGpu, .kernel = kernel}, {});
  const double near = data.problem.dtype == DType::f32 ? 1e-4 : 0.03;
  GradientDifferences all;
  all.add(data.gradients.dq, expected.dq, near, "dq");
  all.add(data.gradients.dk, expected.dk, near, "dk");
  all.add(data.gradients.dv, expected.dv, near, "dv");
  return all;
}

}  // namespace attn::cuda
