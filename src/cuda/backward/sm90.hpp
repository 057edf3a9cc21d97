// What the Hopper backward kernel asks for beside the others: a workspace where dQ is summed, maps
// for the copy engine, and kernels before and after.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cuda/backward/config.hpp"
#include "cuda/driver/types.hpp"
#include "cuda/jit/kernel.hpp"

namespace attn::cuda {

// As attn::device::BackwardMaps.
struct BackwardMaps {
  CUtensorMap q, k, v, d_o;
};

// Nothing where the driver does not take a tensor's strides.
std::optional<BackwardMaps> backward_maps(const Problem& problem, const BackwardConfig& config,
                                          const Inputs& inputs, const Tensor& d_o);

// Bytes of the workspace: of each query of each head LSE and D, and a row of dQ in float32, for
// whole blocks of queries; 8 bytes for what each 32 of these see of a tile of keys. Linear in the
// length but for these last, which are 8 bytes for 2048 queries x 128 keys.
core::Size backward_sm90_workspace(const Problem& problem, const BackwardConfig& config);
// Of the largest grid, or its tiles.
core::Size backward_sm90_blocks(const Problem& problem, const BackwardConfig& config);
// Sets in `to` what the kernels of `config` read, with their workspace from `at` on, a multiple of
// 128 bytes.
void set_backward_sm90_parameters(device::BackwardParams& to, const Problem& problem,
                                  const BackwardConfig& config, std::byte* at);

struct BackwardSm90Kernels {
  std::shared_ptr<const Kernel> rows{}, words{}, main{}, dq{};
};
// derivatives: the bytes of Slope.
void launch_backward_sm90(const BackwardSm90Kernels& kernels, const BackwardConfig& config,
                          int multiprocessors, device::BackwardParams& parameters,
                          BackwardMaps& maps, std::vector<std::byte>& expressions,
                          std::vector<std::byte>& derivatives, const Context& context);

}  // namespace attn::cuda
