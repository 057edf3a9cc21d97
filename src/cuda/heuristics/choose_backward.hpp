// Which backward kernel a problem gets, its launches, and their tile shapes.
#pragma once

#include <string_view>
#include <vector>

#include "attn/problem.hpp"
#include "cuda/heuristics/backward_config.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// What the caller of a plan decides.
struct BackwardWish {
  Arch arch{};
  std::string_view kernel{};   // PlanOptions::kernel
  bool deterministic = false;  // PlanOptions::deterministic
};

// The kernel for a problem. Throws Error(unsupported) naming what no kernel, or the one that is
// named, takes; Error(invalid_argument) for other names.
BackwardKernel choose_backward_kernel(const Problem& problem, const BackwardTensors& tensors,
                                      const BackwardWish& wish);
BackwardConfig backward_config(BackwardKernel kernel, const Problem& problem,
                               const BackwardTensors& tensors, device::Gradient gradient,
                               const BackwardWish& wish = {});

// The launches that give dQ, dK and dV, as far as they are asked for.
struct AskedGradients {
  bool dq = true, dk = true, dv = true;
  bool operator==(const AskedGradients&) const = default;
};
std::vector<BackwardConfig> backward_launches(BackwardKernel kernel, const Problem& problem,
                                              const BackwardTensors& tensors,
                                              const AskedGradients& asked,
                                              const BackwardWish& wish = {});

}  // namespace attn::cuda
