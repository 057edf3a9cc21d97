// What kernels on tensor cores take.
#pragma once

#include <string>

#include "attn/problem.hpp"

namespace attn::cuda {

// Why no forward kernel on tensor cores takes the problem; empty where they may. aligned:
// ForwardTensors::aligned.
std::string tensor_core_obstacle(const Problem& problem, bool aligned);

}  // namespace attn::cuda
