// Which kernel gives the gradients of the buffers that a score reads.
#pragma once

#include <string>
#include <vector>

#include "attn/problem.hpp"
#include "cuda/plan/choose_backward.hpp"

namespace attn::cuda {

// What the kernel for the gradients of buffers `names` is compiled for: the first of the table that
// takes them and the tensors (BackwardKernel::gives_buffers).
BackwardConfig buffers_config(const Problem& problem, const BackwardTensors& tensors,
                              const std::vector<std::string>& names, const BackwardWish& wish);
// What it is compiled for in the calls that there may be, on any GPU: some ask for one buffer of
// several, and their tensors may be aligned or not.
std::vector<BackwardConfig> possible_buffers_configs(const Problem& problem,
                                                     const std::vector<std::string>& names,
                                                     bool deterministic);

}  // namespace attn::cuda
