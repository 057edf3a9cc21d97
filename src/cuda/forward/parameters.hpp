// Parameters of the forward kernels for the tensors of a call.
#pragma once

#include <optional>

#include "attn/run.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/types.hpp"
#include "cuda/forward/config.hpp"

namespace attn::cuda {

// As attn::device::ForwardMaps.
struct ForwardMaps {
  CUtensorMap q, k, v;
};

// workspace: partial results, when num_splits is more than 1.
device::ForwardParams forward_parameters(const Problem& problem, const ForwardConfig& config,
                                         std::int32_t num_splits, const Inputs& inputs,
                                         const Outputs& outputs, const Tensor& workspace);

// Bytes of partial results: O and LSE in float32.
std::int64_t workspace_bytes(const Problem& problem, std::int32_t num_splits);

// Maps of Q, K and V for the copy engine; nothing where the driver does not take their strides.
std::optional<ForwardMaps> forward_maps(const Problem& problem, const ForwardConfig& config,
                                        const Inputs& inputs);

}  // namespace attn::cuda
