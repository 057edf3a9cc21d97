#include "cuda/backward/backward.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "core/expr/build.hpp"
#include "core/tensor/size.hpp"
#include "cuda/backward/config.hpp"
#include "cuda/backward/one_pass.hpp"
#include "cuda/backward/source.hpp"
#include "cuda/codegen/expression_gradients.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/limits.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

// Of batch, query head and query.
core::Size num_rows(const Problem& p) { return core::Size(p.batch) * p.heads_q * p.seqlen_q; }

// Elements of the buffers of the score that may have a gradient, which are those of floats.
core::Size num_buffer_elements(const Problem& p) {
  core::Size sum = 0;
  if (p.score.empty()) return sum;
  for (const auto& buffer : expr::buffers(p.score)) {
    if (is_floating(buffer->tensor().dtype) && !expr::is_scalar(*buffer))
      sum = sum + buffer->tensor().size();
  }
  return sum;
}
core::Size row_terms_bytes(const Problem& p) { return num_rows(p) * sizeof(device::RowTerms); }

// Where in the workspace that of kernels of one pass begins, the sums of dQ of
// backward_flash_attention, and P and dS of backward_standard.
core::Size one_pass_offset(const Problem& p) {
  constexpr std::int64_t kAlignment = 128;
  return core::round_up(row_terms_bytes(p) + num_buffer_elements(p) * sizeof(double), kAlignment);
}

// Elements of P.
core::Size num_scores(const Problem& p) { return num_rows(p) * p.seqlen_k; }

// What kernels of a call are compiled for, beside the problem.
struct Asked {
  BackwardTensors tensors{};
  AskedGradients gradients{};
  bool sink = false;
  std::vector<std::string> names{};  // of the buffers with a gradient
  bool operator==(const Asked&) const = default;
};

struct GradientKernel {
  BackwardConfig config{};
  std::shared_ptr<const Kernel> kernel{};
};
// Of a plan, once asked for: printing a source and hashing it takes longer than a launch.
struct Kernels {
  Asked asked{};
  std::shared_ptr<const Kernel> rows{}, sink{}, clear{}, store{};
  std::vector<GradientKernel> gradients{};
  OnePassKernels one_pass{};  // where such a kernel is chosen; its config is that of gradients
  GradientKernel buffers{};
};
struct BackwardState {
  std::mutex mutex{};
  std::vector<Kernels> ready{};
};

// Gradients of buffers have no kernel on tensor cores.
BackwardConfig buffers_config(const Problem& p, const BackwardTensors& tensors) {
  return backward_config(BackwardKernel::simt, p, tensors, Gradient::buffers);
}

BackwardWish wish_of(const Plan& plan) {
  return {arch_of_capability(device_info(plan.device.index).arch), plan.kernel, plan.deterministic};
}

Kernels make_kernels(const Plan& plan, const Asked& asked, const Inputs& inputs,
                     const Context& context) {
  const Problem& p = plan.problem;
  std::vector<KernelRequest> requests;
  const auto ask = [&](std::shared_ptr<const Kernel>& kernel, Source source) {
    requests.push_back({std::move(source), &kernel});
  };
  const auto ask_gradient = [&](GradientKernel& gradient) {
    ask(gradient.kernel, backward_source(p, gradient.config, asked.names, inputs.buffers));
  };
  const BackwardWish wish = wish_of(plan);
  const BackwardKernel kernel = choose_backward_kernel(p, asked.tensors, wish);
  Kernels kernels{.asked = asked};
  if (is_one_pass(kernel)) {
    const BackwardConfig config = backward_config(kernel, p, asked.tensors, Gradient::all, wish);
    ask(kernels.one_pass.rows, backward_one_pass_rows_source(config, asked.tensors.aligned_o));
    ask(kernels.one_pass.dq, backward_one_pass_dq_source(config));
    if (kernel == BackwardKernel::sm90) {
      ask(kernels.one_pass.words, backward_sm90_words_source(p, config, inputs.buffers));
    }
  }
  if (reads_row_terms(kernel) || asked.sink || !asked.names.empty()) {
    ask(kernels.rows,
        backward_rows_source(backward_config(kernel, p, asked.tensors, Gradient::dq, wish)));
  }
  for (BackwardConfig& config :
       backward_launches(kernel, p, asked.tensors, asked.gradients, wish)) {
    kernels.gradients.push_back({std::move(config), {}});
  }
  for (GradientKernel& gradient : kernels.gradients) ask_gradient(gradient);
  if (asked.sink) ask(kernels.sink, backward_sink_source());
  if (!asked.names.empty()) {
    ask(kernels.clear, backward_clear_source());
    kernels.buffers.config = buffers_config(p, asked.tensors);
    ask_gradient(kernels.buffers);
    ask(kernels.store, backward_store_source());
  }
  get_kernels(plan.device.index, requests, context);
  if (is_one_pass(kernel)) kernels.one_pass.main = kernels.gradients.front().kernel;
  return kernels;
}

Kernels kernels_of(const Plan& plan, const Asked& asked, const Inputs& inputs,
                   const Context& context) {
  const Problem& p = plan.problem;
  auto* state = static_cast<BackwardState*>(plan.state.get());
  // The text depends on the buffers that are bound.
  if (state == nullptr || !prints_alike(p.mask, p.score, inputs.buffers)) {
    return make_kernels(plan, asked, inputs, context);
  }
  {
    const std::lock_guard lock(state->mutex);
    for (const Kernels& k : state->ready) {
      if (k.asked == asked) return k;
    }
  }
  Kernels made = make_kernels(plan, asked, inputs, context);
  const std::lock_guard lock(state->mutex);
  state->ready.push_back(made);
  return made;
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
  for (const auto& [name, tensor] : gradients.buffers) asked.names.push_back(name);
  return asked;
}

device::BackwardParams parameters_of(const Problem& p, const Inputs& inputs, const Outputs& outputs,
                                     const OutputGradients& d_outputs, const Gradients& gradients,
                                     const Tensor& workspace) {
  device::BackwardParams out{};
  fill_problem_parameters(out, p, inputs, outputs);
  out.o = outputs.o.data;
  out.lse = static_cast<const float*>(outputs.lse.data);
  out.d_o = d_outputs.o.data;
  out.d_o_strides = strides_of(d_outputs.o, p.layout_q);
  if (d_outputs.lse.given()) {
    out.d_lse = static_cast<const float*>(d_outputs.lse.data);
    out.d_lse_strides = lse_strides_of(d_outputs.lse, p.layout_q);
  }
  const auto set = [](const Tensor& t, Layout layout, void*& data, device::Strides& strides) {
    if (!t.given()) return;
    data = t.data;
    strides = strides_of(t, layout);
  };
  set(gradients.dq, p.layout_q, out.dq, out.dq_strides);
  set(gradients.dk, p.layout_k, out.dk, out.dk_strides);
  set(gradients.dv, p.layout_k, out.dv, out.dv_strides);
  if (gradients.dsink.given()) {
    out.dsink = static_cast<float*>(gradients.dsink.data);
    out.dsink_stride = gradients.dsink.strides[0];
  }
  out.row_terms = static_cast<device::RowTerms*>(workspace.data);
  return out;
}

// derivatives: Slope or BufferGradients.
void launch_gradient(const GradientKernel& gradient, const Problem& p,
                     device::BackwardParams& parameters, std::vector<std::byte>& derivatives,
                     const Inputs& inputs, const Context& context) {
  const BackwardConfig& config = gradient.config;
  std::vector<std::byte> expressions = pack_expressions(p.mask, score_expression(p), inputs.buffers,
                                                        p.scale(), backward_precise_math(config));
  std::array<void*, 3> arguments{&parameters, expressions.data(), derivatives.data()};
  LaunchConfig launch;
  launch.grid[0] = num_tiles(p, config).value();
  launch.block = static_cast<unsigned>(config.threads());
  launch.shared_bytes = static_cast<unsigned>(config.shared_bytes());
  if (launch.grid[0] > 0) gradient.kernel->launch(launch, context.stream, arguments.data());
}

void launch_gradients(const Plan& plan, const Kernels& kernels, device::BackwardParams& parameters,
                      BackwardMaps* maps, std::vector<std::byte>& slope, const Inputs& inputs,
                      const Context& context) {
  const Problem& p = plan.problem;
  auto* const behind = static_cast<std::byte*>(context.workspace.data) + one_pass_offset(p).value();
  if (kernels.one_pass.main == nullptr) {
    auto* const floats = reinterpret_cast<float*>(behind);
    if (plan.algorithm == Algorithm::standard) {
      parameters.probabilities = floats;
      parameters.ds = floats + num_scores(p).value();
    } else {
      parameters.dq_sum = floats;
    }
    for (const GradientKernel& gradient : kernels.gradients) {
      launch_gradient(gradient, p, parameters, slope, inputs, context);
    }
    return;
  }
  const BackwardConfig& config = kernels.gradients.front().config;
  set_one_pass_parameters(parameters, p, config, behind);
  std::vector<std::byte> expressions = pack_expressions(p.mask, score_expression(p), inputs.buffers,
                                                        p.scale(), backward_precise_math(config));
  launch_one_pass(kernels.one_pass, config, device_info(plan.device.index), parameters, maps,
                  expressions, slope, context);
}

void launch_rows(const Kernel& kernel, const Problem& p, device::BackwardParams& parameters,
                 const Context& context) {
  constexpr std::int64_t kRowsOfBlock = 4;  // one warp each, 128 threads
  LaunchConfig launch;
  launch.grid[0] = core::divide_up(num_rows(p), kRowsOfBlock).value();
  launch.block = 32 * kRowsOfBlock;
  std::array<void*, 1> arguments{&parameters};
  if (launch.grid[0] > 0) kernel.launch(launch, context.stream, arguments.data());
}

void launch_sink(const Kernel& kernel, const Problem& p, device::BackwardParams& parameters,
                 const Context& context) {
  constexpr unsigned kThreads = 1024;
  LaunchConfig launch;
  launch.grid[0] = p.heads_q;
  launch.block = kThreads;
  launch.shared_bytes = kThreads / 32 * sizeof(float);
  std::array<void*, 1> arguments{&parameters};
  if (launch.grid[0] > 0) kernel.launch(launch, context.stream, arguments.data());
}

void launch_elements(const Kernel& kernel, std::int64_t count, void** arguments,
                     const Context& context) {
  constexpr unsigned kThreads = 256;
  LaunchConfig launch;
  launch.grid[0] = core::divide_up(count, kThreads).value();
  launch.block = kThreads;
  if (count > 0) kernel.launch(launch, context.stream, arguments);
}

// The gradients of the buffers: sums in float64 behind the terms of the rows, then float32.
void launch_buffers(const Kernels& kernels, const Problem& p, device::BackwardParams& parameters,
                    const Inputs& inputs, const Gradients& gradients, const Context& context) {
  auto* const first = reinterpret_cast<double*>(static_cast<std::byte*>(context.workspace.data) +
                                                row_terms_bytes(p).value());
  std::vector<double*> sums;
  double* next = first;
  for (const auto& [name, tensor] : gradients.buffers) {
    sums.push_back(next);
    next += tensor.size();
  }
  long long count = next - first;
  double* from = first;
  std::array<void*, 2> cleared{&from, &count};
  launch_elements(*kernels.clear, count, cleared.data(), context);
  std::vector<std::byte> derivatives =
      pack_buffer_gradients(p.score, kernels.asked.names, sums, inputs.buffers);
  launch_gradient(kernels.buffers, p, parameters, derivatives, inputs, context);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const Tensor& to = gradients.buffers[i].second;
    device::BufferGradientParams stored{
        sums[i], static_cast<float*>(to.data), to.size(), {1, 1, 1, 1}, {}};
    // Row-major with the last dimension last of four.
    for (std::int32_t d = 0; d < to.rank; ++d) {
      const auto at = static_cast<std::size_t>(d);
      stored.shape[4 - to.rank + d] = to.shape[at];
      stored.strides[4 - to.rank + d] = to.strides[at];
    }
    std::array<void*, 1> argument{&stored};
    launch_elements(*kernels.store, to.size(), argument.data(), context);
  }
}

// Bytes of the workspace. Throws Error(unsupported) for problems whose memory or grids no GPU has.
std::int64_t checked_workspace(const Problem& p, BackwardKernel kernel, const BackwardWish& wish) {
  core::Size bytes = row_terms_bytes(p) + num_buffer_elements(p) * sizeof(double);
  core::Size blocks = std::max({core::divide_up(num_rows(p), 4), core::Size(p.heads_q),
                                core::divide_up(num_buffer_elements(p), 256)});
  // Tensors without a map get backward_sm80, those that are not aligned backward_simt, with tiles
  // of their own.
  const BackwardKernel unmapped = kernel == BackwardKernel::sm90 && wish.kernel.empty()
                                      ? choose_backward_kernel(p, {.mapped = false}, wish)
                                      : kernel;
  for (const BackwardKernel any : {kernel, unmapped}) {
    if (!is_one_pass(any)) continue;
    // Which tensors a call brings is not known: those that ask for most.
    const BackwardConfig config =
        backward_config(any, p, {.seqused_q = true, .seqused_k = true}, Gradient::all, wish);
    bytes = std::max(bytes, one_pass_offset(p) + one_pass_workspace(p, config));
    blocks = std::max(blocks, one_pass_blocks(p, config));
  }
  if (kernel == BackwardKernel::flash_attention) {
    bytes = std::max(bytes, one_pass_offset(p) + num_rows(p) * p.head_dim * sizeof(float));
  }
  if (kernel == BackwardKernel::standard) {
    bytes = std::max(bytes, one_pass_offset(p) + num_scores(p) * (2 * sizeof(float)));
  }
  for (const BackwardKernel any : {kernel, unmapped, BackwardKernel::simt}) {
    for (const BackwardConfig& config : backward_launches(any, p, {}, {}, wish)) {
      blocks = std::max(blocks, num_tiles(p, config));
    }
  }
  check_sizes(p, Phase::backward, bytes, blocks);
  return bytes.value();
}

void check_buffer_gradients(const Plan& plan, const Gradients& gradients) {
  const Problem& p = plan.problem;
  if (plan.deterministic && !gradients.buffers.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("deterministic is true and the gradient of the buffer '{}' is asked "
                            "for, which the cuda backend sums in no fixed order; accepted there is "
                            "one of the two (problem {})",
                            gradients.buffers.front().first, to_string(p)));
  }
  core::Size asked = 0;
  for (const auto& [name, tensor] : gradients.buffers) asked = asked + tensor.size();
  if (asked <= num_buffer_elements(p)) return;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("the gradients of buffers have {} elements, for which the workspace of "
                  "the plan has room for {}; accepted by backward on the cuda backend are "
                  "buffers that are declared with their sizes, not 0 (problem {})",
                  core::to_string(asked), core::to_string(num_buffer_elements(p)), to_string(p)));
}

std::string passes_reason(BackwardKernel kernel, std::size_t launches) {
  if (is_one_pass(kernel)) {
    return "one pass over S: dK and dV are summed in registers, dQ in memory in float32";
  }
  if (kernel == BackwardKernel::flash_attention) {
    return "one pass over S: dK and dV are summed in shared memory, dQ in memory in float32, all "
           "in a fixed order";
  }
  if (kernel == BackwardKernel::standard) {
    return "P and dS, an element for each query and key, go through memory in float32";
  }
  return fmt::format("{} passes over S: each gradient is summed in registers, in a fixed order",
                     launches);
}

}  // namespace

Plan plan_backward(const Problem& problem, const PlanOptions& options) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = arch_of_capability(device.arch);
  if (arch.number < 80) {
    throw Error(ErrorCode::unsupported,
                fmt::format("device cuda:{} ({}) is {}; accepted are sm_80 and up", device.ordinal,
                            device.name, to_string(arch)));
  }
  const std::string named = backward_kernel_name(options.algorithm, options.kernel);
  const BackwardWish wish{arch, named, options.deterministic};
  const BackwardKernel kernel = choose_backward_kernel(problem, {}, wish);
  const std::vector<BackwardConfig> launches = backward_launches(kernel, problem, {}, {}, wish);
  const BackwardConfig& config = launches.back();
  Plan plan;
  plan.problem = problem;
  plan.phase = Phase::backward;
  plan.backend = Backend::cuda;
  plan.kernel = named;
  plan.algorithm = algorithm_of(kernel, config.skips_empty);
  plan.compute = is_scalar(kernel) ? DType::f32 : DType{problem.dtype};
  plan.block_q = config.block_n;
  plan.block_k = plan.rows_per_task = config.block_m;
  plan.workspace_bytes = checked_workspace(problem, kernel, wish);
  plan.tasks = num_tiles(problem, config).value();
  check_backward_parameters(problem, config, {});
  plan.launch.kernel = name(kernel);
  plan.launch.arch = to_string(arch);
  const bool hopper = kernel == BackwardKernel::sm90;  // its blocks of threads stay
  plan.launch.cluster = config.cluster;
  plan.launch.grid = {
      hopper ? std::min<std::int64_t>(plan.tasks, device.sm_count / config.cluster) * config.cluster
             : plan.tasks,
      1, 1};
  plan.launch.threads = config.threads();
  plan.launch.shared_bytes = config.shared_bytes();
  plan.launch.stages = config.stages;
  plan.reasons.push_back(config.reason);
  plan.reasons.push_back(passes_reason(kernel, launches.size()));
  if (is_one_pass(kernel)) {
    plan.reasons.emplace_back(
        config.ordered
            ? "deterministic: tiles of keys take turns to add to dQ, from the last keys to "
              "the first, so that equal inputs give equal bits; that costs a tenth to a quarter of "
              "the "
              "speed"
            : "dQ is added in no fixed order, so that its last bits may differ between calls; "
              "deterministic asks for equal ones");
  }
  if (const BackwardKernel faster = choose_backward_kernel(problem, {}, {arch, named, false});
      faster != kernel) {
    plan.reasons.push_back(
        fmt::format("deterministic: instead of {}, which adds dQ in no fixed "
                    "order and computes S once",
                    name(faster)));
  }
  plan.state = std::make_shared<BackwardState>();
  return plan;
}

void run_backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                  const OutputGradients& d_outputs, const Gradients& gradients,
                  const Context& context) {
  const Problem& p = plan.problem;
  check_buffer_gradients(plan, gradients);
  const ContextGuard guard(plan.device.index);
  device::BackwardParams parameters =
      parameters_of(p, inputs, outputs, d_outputs, gradients, context.workspace);
  Asked asked = asked_of(inputs, outputs, d_outputs, gradients);
  std::optional<BackwardMaps> maps;
  const BackwardWish wish = wish_of(plan);
  if (choose_backward_kernel(p, asked.tensors, wish) == BackwardKernel::sm90) {
    maps = backward_maps(
        p, backward_config(BackwardKernel::sm90, p, asked.tensors, Gradient::all, wish), inputs,
        d_outputs.o);
    asked.tensors.mapped = maps.has_value();
  }
  const Kernels kernels = kernels_of(plan, asked, inputs, context);
  if (kernels.rows != nullptr) launch_rows(*kernels.rows, p, parameters, context);
  std::vector<std::byte> slope = pack_slope(p.score, inputs.buffers);
  launch_gradients(plan, kernels, parameters, maps ? &*maps : nullptr, slope, inputs, context);
  if (parameters.dsink != nullptr) launch_sink(*kernels.sink, p, parameters, context);
  if (!gradients.buffers.empty()) {
    launch_buffers(kernels, p, parameters, inputs, gradients, context);
  }
}

std::vector<Source> backward_sources(const Problem& problem, Arch arch,
                                     const PlanOptions& options) {
  const std::string named = backward_kernel_name(options.algorithm, options.kernel);
  const BackwardWish wish{arch, named, options.deterministic};
  const BackwardKernel chosen = choose_backward_kernel(problem, {}, wish);
  const std::vector<BackwardConfig> launches = backward_launches(chosen, problem, {}, {}, wish);
  std::vector<std::string> names;
  if (!problem.score.empty()) {
    for (const auto& buffer : expr::buffers(problem.score)) {
      if (is_floating(buffer->tensor().dtype) && !expr::is_scalar(*buffer))
        names.push_back(buffer->name());
    }
  }
  std::vector<Source> sources;
  if (reads_row_terms(chosen) || problem.sink || !names.empty()) {
    sources.push_back(backward_rows_source(launches.front()));
  }
  if (is_one_pass(chosen)) {
    sources.push_back(backward_one_pass_rows_source(launches.front(), true));
    if (chosen == BackwardKernel::sm90) {
      sources.push_back(backward_sm90_words_source(problem, launches.front()));
    }
    sources.push_back(backward_one_pass_dq_source(launches.front()));
  }
  for (const BackwardConfig& config : launches) {
    sources.push_back(backward_source(problem, config, {}));
  }
  if (problem.sink) sources.push_back(backward_sink_source());
  if (names.empty()) return sources;
  sources.push_back(backward_clear_source());
  sources.push_back(backward_source(problem, buffers_config(problem, {}), names));
  sources.push_back(backward_store_source());
  return sources;
}

}  // namespace attn::cuda
