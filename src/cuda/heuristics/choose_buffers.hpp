// Which kernel gives the gradients of the buffers that a score reads.
#pragma once

#include <string>
#include <vector>

#include "attn/problem.hpp"
#include "cuda/heuristics/backward_config.hpp"
#include "cuda/heuristics/choose_backward.hpp"

namespace attn::cuda {

// What the kernel for the gradients of buffers `names` is compiled for: backward_sm90_buffers, on
// Hopper, or backward_sm80_buffers, on tensor cores, where they take them and the tensors, else
// backward_simt, in float32. Where wish names another kernel than backward_sm90, the first is none.
BackwardConfig buffers_config(const Problem& problem, const BackwardTensors& tensors,
                              const std::vector<std::string>& names, const BackwardWish& wish);
// What it is compiled for in the calls that there may be, on any GPU: some ask for one buffer of
// several, and their tensors may be aligned or not.
std::vector<BackwardConfig> possible_buffers_configs(const Problem& problem,
                                                     const std::vector<std::string>& names,
                                                     bool deterministic);

}  // namespace attn::cuda
