// What the kernels of the backward pass are compiled for.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attn/plan.hpp"
#include "cuda/device/params.cuh"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// What the tensors of a call add to the problem.
struct BackwardTensors {
  bool seqused_q = false, seqused_k = false;
  bool operator==(const BackwardTensors&) const = default;
};

struct BackwardConfig {
  DType dtype = DType::f32;
  int head_dim = 0, head_dim_v = 0;
  bool packed_q = false, packed_k = false, used_q = false, used_k = false;
  bool dropout = false;

  // Of a kernel that computes one gradient.
  device::Gradient gradient = device::Gradient::dq;
  int block_m = 0;  // rows of the gradient of a block of threads
  int block_n = 0;  // rows of the other side that they meet at a time

  std::int64_t shared_bytes() const noexcept;  // dynamic
};

inline constexpr int kBackwardThreads = 128;
inline constexpr std::string_view kBackwardKernel = "backward_simt";

// Throws Error(unsupported) for dtypes and kernel names that no kernel of the pass takes.
void check_backward(const Problem& problem, std::string_view kernel);
BackwardConfig choose_backward(const Problem& problem, const BackwardTensors& tensors,
                               device::Gradient gradient);
// Tiles of the gradient, one a block of threads.
std::int64_t num_tiles(const Problem& problem, const BackwardConfig& config);

}  // namespace attn::cuda
