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
#include "cuda/heuristics/choose_backward.hpp"
#include "cuda/jit/kernel.hpp"

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
  ExpressionPack expressions{};
  std::shared_ptr<const Kernel> kernel{};
  LaunchConfig launch{};
};

// The launches for the gradients of buffers, and the bytes of their expressions.
struct BuffersLaunch {
  ExpressionPack expressions{};
  BufferLaunches launches;
};

// All of a run but the tensors of a call.
struct BackwardRun {
  BackwardSignature signature{};  // what it was made for

  device::BackwardParams parameters{};
  ExpressionPack all_buffers{}, slope{};
  RowsLaunch rows{}, sink{};
  std::vector<GradientLaunch> gradients{};
  OnePassKernels one_pass{};  // where such a kernel is chosen; its config is that of gradients
  OnePassPlaces places{};
  std::int64_t one_pass_offset = 0;
  std::optional<BuffersLaunch> buffers{};

  bool needs_maps() const {
    return one_pass.main != nullptr && reads_maps(gradients.front().config.kernel);
  }
  bool buffers_need_maps() const { return buffers && reads_maps(buffers->launches.config.kernel); }
};

// Throws where a plan that was changed by hand cannot run (core/validate/plan_field.hpp).
BackwardRun prepare_backward(const Plan& plan, const BackwardSignature& signature,
                             const Context& context);

}  // namespace attn::cuda
