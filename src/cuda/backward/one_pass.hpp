// The launches of kernels that compute S once (BackwardKernel::one_pass): others come before and
// after them.
#pragma once

#include <cstddef>
#include <memory>

#include "attn/run.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

// Sets in `to` what the kernels of `config` read, but for the workspace (BackwardKernel::place).
void set_one_pass_parameters(device::BackwardParams& to, const Problem& problem,
                             const BackwardConfig& config);

struct OnePassKernels {
  std::shared_ptr<const Kernel> rows{}, words{}, main{}, dq{};  // words: where they are read
};
// maps: null for kernels without. expressions, slope: the bytes of these structs.
void launch_one_pass(const OnePassKernels& kernels, const BackwardConfig& config,
                     const DeviceInfo& device, device::BackwardParams& parameters,
                     BackwardMaps* maps, std::byte* expressions, std::byte* slope,
                     const Context& context);

}  // namespace attn::cuda
