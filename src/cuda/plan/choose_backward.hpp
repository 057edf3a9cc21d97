// Which backward kernel a problem gets, its launches, and their tile shapes.
#pragma once

#include <string_view>
#include <vector>

#include "attn/problem.hpp"
#include "cuda/jit/compile.hpp"
#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

// What the caller of a plan decides.
struct BackwardWish {
  Arch arch{};
  std::string_view kernel{};   // PlanOptions::kernel
  bool deterministic = false;  // PlanOptions::deterministic
};

// The kernel for a problem. Throws Error(unsupported) naming what no kernel, or the one that is
// named, takes; Error(invalid_argument) for other names.
const BackwardKernel& choose_backward_kernel(const Problem& problem, const BackwardTensors& tensors,
                                             const BackwardWish& wish);
// What a kernel is compiled for. Throws Error(unsupported) where it does not take the problem.
BackwardConfig backward_config(const BackwardKernel& kernel, const Problem& problem,
                               const BackwardTensors& tensors, device::Gradient gradient,
                               const BackwardWish& wish = {});
// The launches that give what is asked for.
std::vector<BackwardConfig> backward_launches(const BackwardKernel& kernel, const Problem& problem,
                                              const BackwardTensors& tensors,
                                              const AskedGradients& asked,
                                              const BackwardWish& wish = {});

// A kernel with the shape that it chose; of `choice`, obstacle is empty.
BackwardConfig config_of(const BackwardKernel& kernel, const BackwardRequest& request,
                         BackwardChoice choice);

}  // namespace attn::cuda
