// What a forward pass of a plan needs beside the tensors of a call: kernels, compiled, and their
// launches. It sees no tensors, only what of them a kernel is compiled for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attn/run.hpp"
#include "core/problem/prefix_parts.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/device/params.cuh"
#include "cuda/forward/copied_operands.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/kernels/forward_kernel.hpp"
#include "cuda/row_places.hpp"

namespace attn::cuda {

// What the passes over a shared prefix are made for.
struct PrefixTensors {
  bool as_one = true;     // rows of Q: core::prefix_parts
  std::int64_t rows = 0;  // of a packed Q
  ForwardTensors shared{}, rest{};
  bool operator==(const PrefixTensors&) const = default;
};

// What kernels are compiled for, beside the problem.
struct ForwardSignature {
  ForwardTensors tensors{};
  PrintedBuffers printed{};
  PrefixTensors prefix{};
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

// A pass over keys of a shared prefix, which come before those of ForwardRun::pass (prefix.hpp).
struct PrefixPass {
  Problem problem{};
  bool as_one = false;
  ExpressionPack expressions{};
  ForwardPass pass{};
};

// All of a run but the tensors of a call.
struct ForwardRun {
  ForwardSignature signature{};  // what it was made for
  Problem problem{};  // of the plan, over copies, and over the own keys where there is a prefix
  ExpressionPack expressions{};
  core::PrefixParts parts{};  // of a problem with a prefix
  std::vector<PrefixPass> prefix{};
  // Lays V out ahead (transposed_values.hpp), likewise.
  std::shared_ptr<const Kernel> transpose{};
  std::int64_t transposed_offset = 0;
  // Converts Q, K and V ahead, to so many bytes behind the workspace's start; null where kernels
  // read them as they are.
  Copies copies{};
  std::shared_ptr<const Kernel> copy{};
  std::int64_t copies_offset = 0;
  ForwardPass pass{};
  // Of the sequences with a few rows, where the other pass leaves them out.
  std::optional<ForwardPass> decoding{};
  std::shared_ptr<const RowPlaces> places{};  // null unless the problem is a part of another
};

// Thread blocks of a kernel that has so many tiles.
std::int64_t forward_blocks(const ForwardConfig& config, std::int64_t tiles, int sm_count);

// Throws where a plan that was changed by hand cannot run (core/validate/plan_field.hpp).
ForwardRun prepare_forward(const Plan& plan, const ForwardSignature& signature,
                           const Context& context);

}  // namespace attn::cuda
