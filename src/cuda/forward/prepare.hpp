// What a forward pass of a plan needs beside the tensors of a call: kernels, compiled, and their
// launches. It sees no tensors, only what of them a kernel is compiled for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "attn/run.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/device/params.cuh"
#include "cuda/jit/kernel.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// What kernels are compiled for, beside the problem.
struct ForwardSignature {
  ForwardTensors tensors{};
  PrintedBuffers printed{};
};

// The launches of one forward kernel and of those around it.
struct ForwardPass {
  ForwardConfig config{};
  device::ForwardParams parameters{};
  std::int64_t workspace_offset = 0;  // bytes
  std::shared_ptr<const Kernel> classify{}, forward{}, combine{};
  LaunchConfig classify_launch{}, forward_launch{}, combine_launch{};
  bool deals_tiles = false;  // by a counter (driver/counters.hpp)
};

// All of a run but the tensors of a call.
struct ForwardRun {
  ForwardSignature signature{};  // what it was made for
  ExpressionPack expressions;
  ForwardPass pass{};
  // Of the sequences with a few rows, where the other pass leaves them out.
  std::optional<ForwardPass> decoding{};
};

// Thread blocks of a kernel that has so many tiles.
std::int64_t forward_blocks(const ForwardConfig& config, std::int64_t tiles, int sm_count);

// Throws where a plan that was changed by hand cannot run (core/validate/plan_field.hpp).
ForwardRun prepare_forward(const Plan& plan, const ForwardSignature& signature,
                           const Context& context);

}  // namespace attn::cuda
