// What the kernels of the backward pass are compiled for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/plan.hpp"
#include "core/size.hpp"
#include "cuda/device/params.cuh"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

enum class BackwardKernel : std::uint8_t {
  sm80,  // src/cuda/device/kernels/backward_sm80.cuh: mma.sync, any architecture from 8.0 on
  simt,  // backward_simt.cuh: float32 and whatever the other does not take
};
std::string_view name(BackwardKernel kernel) noexcept;  // "backward_sm80", ...

// What the tensors of a call add to the problem.
struct BackwardTensors {
  bool seqused_q = false, seqused_k = false;
  // Addresses and strides of Q, K, V, dO, dQ, dK and dV are multiples of 16 bytes.
  bool aligned = true;
  bool operator==(const BackwardTensors&) const = default;
};

// Of a kernel that computes one gradient, or two.
struct BackwardConfig {
  BackwardKernel kernel = BackwardKernel::simt;
  device::Gradient gradient = device::Gradient::dq;
  DType dtype = DType::f32;
  int head_dim = 0, head_dim_v = 0;

  int block_m = 0;  // rows of the gradient of a block of threads
  int block_n = 0;  // rows of the other side that they meet at a time
  int warps = 0;
  int stages = 0;  // blocks of the other side in flight

  bool packed_q = false, packed_k = false, used_q = false, used_k = false;
  bool dropout = false;

  std::string reason;           // of the tile shape
  int allowed_spill_bytes = 0;  // Source::allowed_spill_bytes

  int threads() const noexcept { return 32 * warps; }
  std::int64_t shared_bytes() const noexcept;  // dynamic
};

// The kernel for a problem; `forced` is a kernel's name or empty. Throws Error(unsupported) naming
// what no kernel, or the forced one, takes; Error(invalid_argument) for other names.
BackwardKernel choose_backward_kernel(const Problem& problem, const BackwardTensors& tensors,
                                      std::string_view forced);
BackwardConfig backward_config(BackwardKernel kernel, const Problem& problem,
                               const BackwardTensors& tensors, device::Gradient gradient);

// The launches that give dQ, dK and dV, as far as they are asked for.
struct AskedGradients {
  bool dq = true, dk = true, dv = true;
  bool operator==(const AskedGradients&) const = default;
};
std::vector<BackwardConfig> backward_launches(BackwardKernel kernel, const Problem& problem,
                                              const BackwardTensors& tensors,
                                              const AskedGradients& asked);

// Tiles of the gradient, one a block of threads.
core::Size num_tiles(const Problem& problem, const BackwardConfig& config);

}  // namespace attn::cuda
