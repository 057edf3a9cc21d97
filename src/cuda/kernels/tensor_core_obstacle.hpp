// What kernels on tensor cores take.
#pragma once

#include <cstdint>
#include <string>

#include "attn/problem.hpp"
#include "cuda/kernels/backward_features.hpp"

namespace attn::cuda {

// Why a forward kernel on tensor cores that takes head_dim and head_dim_v up to these does not take
// the problem; empty where it may. aligned: ForwardTensors::aligned.
std::string tensor_core_obstacle(const Problem& problem, bool aligned, std::int64_t most = 256,
                                 std::int64_t most_v = 256);
// The same of a backward kernel that takes both head sizes up to `most`.
std::string tensor_core_obstacle(const Problem& problem, const BackwardTensors& tensors,
                                 std::int64_t most = 256);

}  // namespace attn::cuda
