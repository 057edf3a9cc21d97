// What the kernels that compute S once, backward_sm90 and backward_sm80, ask for beside the others:
// a workspace where dQ is summed, kernels before and after, and maps for Hopper's copy engine.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "attn/run.hpp"
#include "core/tensor/size.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/types.hpp"
#include "cuda/heuristics/backward_config.hpp"
#include "cuda/jit/kernel.hpp"

namespace attn::cuda {

// Mirrors attn::device::BackwardMaps.
struct BackwardMaps {
  CUtensorMap q, k, v, d_o;
};

// Nothing where the driver does not take a tensor's strides.
std::optional<BackwardMaps> backward_maps(const Problem& problem, const BackwardConfig& config,
                                          const Inputs& inputs, const Tensor& d_o);

// Bytes of the workspace: of each query of each head LSE and D, and a row of dQ in float32, for
// whole blocks of queries; on Hopper 8 bytes for what each 32 of these see of a tile of keys, and
// where tiles take turns the words of schedule/dq_turns.cuh.
// Linear in the length but for these last, which are 8 bytes for 2048 queries x 128 keys.
core::Size one_pass_workspace(const Problem& problem, const BackwardConfig& config);
// The offsets, in bytes, at which the parts of that workspace begin; dQ is first.
struct OnePassPlaces {
  std::int64_t lse2 = 0, d = 0, query_words = 0;
};
OnePassPlaces one_pass_places(const Problem& problem, const BackwardConfig& config);
// Sets in `to` what the kernels of `config` read, but for the workspace, ...
void set_one_pass_parameters(device::BackwardParams& to, const Problem& problem,
                             const BackwardConfig& config);
// ... which is from `at` on, a multiple of 128 bytes.
void place_one_pass(device::BackwardParams& to, const OnePassPlaces& places, std::byte* at);

struct OnePassKernels {
  std::shared_ptr<const Kernel> rows{}, words{}, main{}, dq{};  // words: of backward_sm90
};
// maps: of backward_sm90, else null. expressions, slope: the bytes of these structs.
void launch_one_pass(const OnePassKernels& kernels, const BackwardConfig& config,
                     const DeviceInfo& device, device::BackwardParams& parameters,
                     BackwardMaps* maps, std::byte* expressions, std::byte* slope,
                     const Context& context);

}  // namespace attn::cuda
