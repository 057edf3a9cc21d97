// What a backward pass of a plan needs beside the tensors of a call: kernels, compiled, and their
// launches. It sees no tensors, only what of them a kernel is compiled for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/run.hpp"
#include "cuda/backward/buffers.hpp"
#include "cuda/backward/one_pass.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/plan/choose_backward.hpp"
#include "cuda/row_places.hpp"

namespace attn::cuda {

// Which tensors a call brings, and what it asks for, but for gradients of buffers.
struct Asked {
  BackwardTensors tensors{};
  AskedGradients gradients{};
  bool sink = false;
  bool operator==(const Asked&) const = default;
};

// What kernels are compiled for, beside the problem.
struct BackwardSignature {
  Asked asked{};
  std::vector<std::string> names{};  // of the buffers with a gradient
  PrintedBuffers printed{};
};

// A kernel that is launched with nothing but BackwardParams.
struct RowsLaunch {
  std::shared_ptr<const Kernel> kernel{};
  LaunchConfig launch{};
};

struct GradientLaunch {
  BackwardConfig config{};
  std::shared_ptr<const Kernel> kernel{};
  LaunchConfig launch{};
};

// All of a run but the tensors of a call.
struct BackwardRun {
  BackwardSignature signature{};  // what it was made for

  device::BackwardParams parameters{};
  ExpressionPack all_buffers{}, expressions{}, slope{};
  RowsLaunch far_rows{}, rows{}, sink{};    // far_rows is given `expressions` too
  std::int64_t any_far_row = 0;             // where in the workspace the word of far_rows is
  std::vector<GradientLaunch> gradients{};  // of one kernel
  OnePassKernels one_pass{};       // where that is one of them; its config is that of gradients
  std::int64_t kernel_offset = 0;  // in the workspace (workspace.hpp)
  std::optional<BufferLaunches> buffers{};
  std::shared_ptr<const RowPlaces> places{};  // null unless the problem is a part of another

  // Of the first of the launches for dQ, dK and dV; null where none is asked for.
  const BackwardConfig* main_config() const {
    return gradients.empty() ? nullptr : &gradients.front().config;
  }
  const BackwardConfig* buffers_config() const { return buffers ? &buffers->config : nullptr; }
};

// Throws where a plan that was changed by hand cannot run (core/validate/plan_field.hpp).
BackwardRun prepare_backward(const Plan& plan, const BackwardSignature& signature,
                             const Context& context);

}  // namespace attn::cuda
