// A run of the backward pass: what follows from the plan and from which tensors a call brings, and
// its launches with those tensors.
#include "cuda/backward/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "core/tensor/size.hpp"
#include "core/validate/plan_field.hpp"
#include "core/validate/validate.hpp"
#include "cuda/backward/backward.hpp"
#include "cuda/backward/buffers.hpp"
#include "cuda/backward/one_pass.hpp"
#include "cuda/backward/source.hpp"
#include "cuda/backward/workspace.hpp"
#include "cuda/codegen/expression_buffers.hpp"
#include "cuda/codegen/expression_gradients.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/heuristics/backward_tiles.hpp"
#include "cuda/heuristics/choose_backward.hpp"
#include "cuda/heuristics/choose_buffers.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/plan_state.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

// What kernels of a call are compiled for, beside the problem and the buffers with a gradient.
struct Asked {
  BackwardTensors tensors{};
  AskedGradients gradients{};
  bool sink = false;
  bool operator==(const Asked&) const = default;
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
  // What it was made for.
  Asked asked{};
  std::vector<std::string> names{};  // of the buffers with a gradient
  std::vector<PrintedTensor> printed{};

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

GradientLaunch gradient_launch(const Problem& p, BackwardConfig config) {
  GradientLaunch made;
  made.expressions =
      expression_pack(p.mask, score_expression(p), p.scale(), backward_precise_math(config));
  made.config = std::move(config);
  made.launch.grid[0] = num_tiles(p, made.config).value();
  made.launch.block = static_cast<unsigned>(made.config.threads());
  made.launch.shared_bytes = static_cast<unsigned>(made.config.shared_bytes());
  return made;
}

LaunchConfig rows_launch(const Problem& p) {
  constexpr std::int64_t kRowsOfBlock = 4;  // one warp each, 128 threads
  LaunchConfig launch;
  launch.grid[0] = core::divide_up(num_rows(p), kRowsOfBlock).value();
  launch.block = 32 * kRowsOfBlock;
  return launch;
}

LaunchConfig sink_launch(const Problem& p) {
  constexpr unsigned kThreads = 1024;
  LaunchConfig launch;
  launch.grid[0] = p.heads_q;
  launch.block = kThreads;
  launch.shared_bytes = kThreads / 32 * sizeof(float);
  return launch;
}

BackwardRun make_run(const Plan& plan, const Asked& asked, const Inputs& inputs,
                     const Gradients& gradients, const Context& context) {
  const Problem& p = plan.problem;
  const BackwardWish wish{arch_of_capability(device_info(plan.device.index).arch), plan.kernel,
                          plan.deterministic};
  // A plan whose problem was changed by hand needs the workspace of what it is now.
  core::check_plan_workspace(plan, checked_workspace(p, choose_backward_kernel(p, {}, wish), wish));
  const BackwardKernel kernel = choose_backward_kernel(p, asked.tensors, wish);
  BackwardRun run{.asked = asked};
  for (const auto& [name, tensor] : gradients.buffers) run.names.push_back(name);
  fill_problem_parameters(run.parameters, p);
  run.all_buffers = ExpressionPack(expression_buffers(p.mask, p.score), {}, p.score);
  run.printed = run.all_buffers.printed(inputs.buffers);
  run.slope = slope_pack(p.score);
  run.one_pass_offset = one_pass_offset(p, plan.deterministic).value();
  std::vector<KernelRequest> requests;
  const auto ask = [&](std::shared_ptr<const Kernel>& made, Source source) {
    requests.push_back({std::move(source), &made});
  };
  const auto ask_gradient = [&](GradientLaunch& gradient) {
    ask(gradient.kernel, backward_source(p, gradient.config, run.names, inputs.buffers));
  };
  for (BackwardConfig& config :
       backward_launches(kernel, p, asked.tensors, asked.gradients, wish)) {
    run.gradients.push_back(gradient_launch(p, std::move(config)));
  }
  if (is_one_pass(kernel)) {
    const BackwardConfig& config = run.gradients.front().config;
    ask(run.one_pass.rows, backward_one_pass_rows_source(config, asked.tensors.aligned_o));
    ask(run.one_pass.dq, backward_one_pass_dq_source(config));
    if (kernel == BackwardKernel::sm90) {
      ask(run.one_pass.words, backward_sm90_words_source(p, config, inputs.buffers));
    }
    set_one_pass_parameters(run.parameters, p, config);
    run.places = one_pass_places(p, config);
  }
  if (reads_row_terms(kernel) || asked.sink || !run.names.empty()) {
    run.rows.launch = rows_launch(p);
    ask(run.rows.kernel,
        backward_rows_source(backward_config(kernel, p, asked.tensors, Gradient::dq, wish)));
  }
  for (GradientLaunch& gradient : run.gradients) ask_gradient(gradient);
  if (asked.sink) {
    run.sink.launch = sink_launch(p);
    ask(run.sink.kernel, backward_sink_source());
  }
  if (!run.names.empty()) {
    run.buffers.emplace(
        BuffersLaunch{.launches = BufferLaunches(p, asked.tensors, run.names, wish,
                                                 device_info(plan.device.index).sm_count)});
    BufferLaunches& launches = run.buffers->launches;
    run.buffers->expressions = expression_pack(p.mask, score_expression(p), p.scale(),
                                               backward_precise_math(launches.config));
    ask(launches.clear, backward_clear_source());
    ask(launches.add, backward_source(p, launches.config, run.names, inputs.buffers));
    ask(launches.store, backward_store_source(launches.config));
  }
  get_kernels(plan.device.index, requests, context);
  if (is_one_pass(kernel)) run.one_pass.main = run.gradients.front().kernel;
  return run;
}

Asked asked_of(const Inputs& inputs, const Outputs& outputs, const OutputGradients& d_outputs,
               const Gradients& gradients) {
  Asked asked;
  asked.tensors.seqused_q = inputs.seqused_q.given();
  asked.tensors.seqused_k = inputs.seqused_k.given();
  asked.tensors.aligned_o = alignment_of(outputs.o) % 16 == 0;
  for (const Tensor* t : {&inputs.q, &inputs.k, &inputs.v, &d_outputs.o, &gradients.dq,
                          &gradients.dk, &gradients.dv}) {
    if (t->given() && alignment_of(*t) % 16 != 0) asked.tensors.aligned = false;
  }
  asked.gradients = {gradients.dq.given(), gradients.dk.given(), gradients.dv.given()};
  asked.sink = gradients.dsink.given();
  return asked;
}

void fill_backward_tensors(device::BackwardParams& to, const Problem& p, const Inputs& inputs,
                           const Outputs& outputs, const OutputGradients& d_outputs,
                           const Gradients& gradients, const Tensor& workspace) {
  fill_tensors(to, p, inputs, outputs);
  to.o = outputs.o.data;
  to.lse = static_cast<const float*>(outputs.lse.data);
  to.d_o = d_outputs.o.data;
  to.d_o_strides = strides_of(d_outputs.o, p.layout_q);
  if (d_outputs.lse.given()) {
    to.d_lse = static_cast<const float*>(d_outputs.lse.data);
    to.d_lse_strides = lse_strides_of(d_outputs.lse, p.layout_q);
  }
  const auto set = [](const Tensor& t, Layout layout, void*& data, device::Strides& strides) {
    if (!t.given()) return;
    data = t.data;
    strides = strides_of(t, layout);
  };
  set(gradients.dq, p.layout_q, to.dq, to.dq_strides);
  set(gradients.dk, p.layout_k, to.dk, to.dk_strides);
  set(gradients.dv, p.layout_k, to.dv, to.dv_strides);
  if (gradients.dsink.given()) {
    to.dsink = static_cast<float*>(gradients.dsink.data);
    to.dsink_stride = gradients.dsink.strides[0];
  }
  to.row_terms = static_cast<device::RowTerms*>(workspace.data);
}

void launch_rows(const RowsLaunch& rows, device::BackwardParams& parameters,
                 const Context& context) {
  std::array<void*, 1> arguments{&parameters};
  if (rows.kernel != nullptr && rows.launch.grid[0] > 0) {
    rows.kernel->launch(rows.launch, context.stream, arguments.data());
  }
}

// derivatives: the bytes of Slope or of BufferGradients.
void launch_gradient(const GradientLaunch& gradient, device::BackwardParams& parameters,
                     std::byte* derivatives, const Inputs& inputs, const Context& context) {
  if (gradient.launch.grid[0] == 0) return;
  core::CallMemory memory;
  std::pmr::vector<std::byte> expressions(gradient.expressions.size(), &memory.resource());
  gradient.expressions.pack(inputs.buffers, expressions.data());
  std::array<void*, 3> arguments{&parameters, expressions.data(), derivatives};
  gradient.kernel->launch(gradient.launch, context.stream, arguments.data());
}

// What lies in the workspace follows from the kernel, as the plan's algorithm may be changed by
// hand.
void launch_gradients(const Plan& plan, const BackwardRun& run, device::BackwardParams& parameters,
                      BackwardMaps* maps, const Inputs& inputs, const Context& context) {
  auto* const behind = static_cast<std::byte*>(context.workspace.data) + run.one_pass_offset;
  core::CallMemory memory;
  std::pmr::vector<std::byte> slope(run.slope.size(), &memory.resource());
  run.slope.pack(inputs.buffers, slope.data());
  if (run.one_pass.main == nullptr) {
    auto* const floats = reinterpret_cast<float*>(behind);
    for (const GradientLaunch& gradient : run.gradients) {
      if (gradient.config.kernel == BackwardKernel::standard) {
        parameters.probabilities = floats;
        parameters.ds = floats + num_scores(plan.problem).value();
      } else {
        parameters.dq_sum = floats;
      }
      launch_gradient(gradient, parameters, slope.data(), inputs, context);
    }
    return;
  }
  place_one_pass(parameters, run.places, behind);
  const GradientLaunch& main = run.gradients.front();
  std::pmr::vector<std::byte> expressions(main.expressions.size(), &memory.resource());
  main.expressions.pack(inputs.buffers, expressions.data());
  launch_one_pass(run.one_pass, main.config, device_info(plan.device.index), parameters, maps,
                  expressions.data(), slope.data(), context);
}

// Their sums lie behind the terms of the rows.
void launch_buffers(const BuffersLaunch& buffers, const Problem& p,
                    device::BackwardParams& parameters, BackwardMaps* maps, const Inputs& inputs,
                    const Gradients& gradients, const Context& context) {
  core::CallMemory memory;
  std::pmr::vector<std::byte> expressions(buffers.expressions.size(), &memory.resource());
  buffers.expressions.pack(inputs.buffers, expressions.data());
  std::byte* const sums =
      static_cast<std::byte*>(context.workspace.data) + row_terms_bytes(p).value();
  buffers.launches.launch(parameters, maps, expressions.data(), sums, inputs, gradients, context);
}

}  // namespace

std::shared_ptr<void> backward_state(const Plan& plan) {
  return std::shared_ptr<core::MadeFor>(std::make_shared<PlanState<BackwardRun>>(plan));
}

void run_backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                  const OutputGradients& d_outputs, const Gradients& gradients,
                  const Context& context) {
  const Problem& p = plan.problem;
  check_buffer_gradients(p, gradients);
  const ContextGuard guard(plan.device.index);
  Asked asked = asked_of(inputs, outputs, d_outputs, gradients);
  std::optional<BackwardRun> own;
  const auto suits = [&](const BackwardRun& run) {
    return run.asked == asked &&
           std::ranges::equal(
               run.names, gradients.buffers, {}, {},
               [](const auto& buffer) -> const std::string& { return buffer.first; }) &&
           run.all_buffers.prints(run.printed, inputs.buffers);
  };
  const auto find = [&] {
    return &run_of(plan, own, suits,
                   [&] { return make_run(plan, asked, inputs, gradients, context); });
  };
  const BackwardRun* run = find();
  std::optional<BackwardMaps> maps, buffer_maps;
  // Whether the driver makes all maps that the run needs.
  const auto make_maps = [&] {
    if (run->needs_maps()) {
      maps = backward_maps(p, run->gradients.front().config, inputs, d_outputs.o);
      if (!maps) return false;
    }
    if (run->buffers_need_maps()) {
      buffer_maps = backward_maps(p, run->buffers->launches.config, inputs, d_outputs.o);
      if (!buffer_maps) return false;
    }
    return true;
  };
  if (!make_maps()) {
    asked.tensors.mapped = false;
    run = find();
  }
  device::BackwardParams parameters = run->parameters;
  fill_backward_tensors(parameters, p, inputs, outputs, d_outputs, gradients, context.workspace);
  launch_rows(run->rows, parameters, context);
  launch_gradients(plan, *run, parameters, maps ? &*maps : nullptr, inputs, context);
  launch_rows(run->sink, parameters, context);
  if (run->buffers) {
    launch_buffers(*run->buffers, p, parameters, buffer_maps ? &*buffer_maps : nullptr, inputs,
                   gradients, context);
  }
}

}  // namespace attn::cuda
