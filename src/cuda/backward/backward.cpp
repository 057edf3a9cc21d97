#include "cuda/backward/backward.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "cuda/backward/config.hpp"
#include "cuda/backward/source.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/jit/expression_gradients.hpp"
#include "cuda/jit/expression_text.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;
constexpr std::array kGradients{Gradient::dq, Gradient::dk, Gradient::dv};

// Of batch, query head and query.
std::int64_t num_rows(const Problem& p) { return p.batch * p.heads_q * p.seqlen_q; }

// Elements of the buffers of the score that may have a gradient, which are those of floats.
std::int64_t num_buffer_elements(const Problem& p) {
  std::int64_t sum = 0;
  if (p.score.empty()) return sum;
  for (const auto& buffer : expr::buffers(p.score)) {
    if (is_floating(buffer->tensor().dtype)) sum += buffer->tensor().size();
  }
  return sum;
}
std::int64_t row_terms_bytes(const Problem& p) {
  return num_rows(p) * static_cast<std::int64_t>(sizeof(device::RowTerms));
}

std::vector<std::string> names_of(const expr::Bindings& buffers) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : buffers) names.push_back(name);
  return names;
}

// The kernels of a plan, once asked for: printing a source and hashing it takes longer than a
// launch.
struct Kernels {
  BackwardTensors tensors{};
  std::vector<std::string> names{};  // of the buffers with a gradient
  std::shared_ptr<const Kernel> rows{}, sink{}, clear{}, buffers{}, store{};
  std::array<std::shared_ptr<const Kernel>, kGradients.size()> gradients{};
};
struct BackwardState {
  std::mutex mutex{};
  std::vector<Kernels> ready{};
};

Kernels make_kernels(const Plan& plan, const BackwardTensors& tensors,
                     std::vector<std::string> names, const Inputs& inputs, const Context& context) {
  const Problem& p = plan.problem;
  const auto get = [&](const Source& source) {
    return get_kernel(plan.device.index, source, context);
  };
  const auto get_gradient = [&](Gradient gradient) {
    return get(backward_source(p, choose_backward(p, tensors, gradient), names, inputs.buffers));
  };
  Kernels kernels{.tensors = tensors, .names = names};
  kernels.rows = get(backward_rows_source(choose_backward(p, tensors, Gradient::dq)));
  for (std::size_t i = 0; i < kGradients.size(); ++i) {
    kernels.gradients[i] = get_gradient(kGradients[i]);
  }
  if (p.sink) kernels.sink = get(backward_sink_source());
  if (names.empty()) return kernels;
  kernels.clear = get(backward_clear_source());
  kernels.buffers = get_gradient(Gradient::buffers);
  kernels.store = get(backward_store_source());
  return kernels;
}

Kernels kernels_of(const Plan& plan, const BackwardTensors& tensors, std::vector<std::string> names,
                   const Inputs& inputs, const Context& context) {
  const Problem& p = plan.problem;
  auto* state = static_cast<BackwardState*>(plan.state.get());
  // The text depends on the buffers that are bound.
  if (state == nullptr || !prints_alike(p.mask, p.score, inputs.buffers)) {
    return make_kernels(plan, tensors, std::move(names), inputs, context);
  }
  {
    const std::lock_guard lock(state->mutex);
    for (const Kernels& k : state->ready) {
      if (k.tensors == tensors && k.names == names) return k;
    }
  }
  Kernels made = make_kernels(plan, tensors, std::move(names), inputs, context);
  const std::lock_guard lock(state->mutex);
  state->ready.push_back(made);
  return made;
}

device::BackwardParams parameters_of(const Problem& p, const Inputs& inputs, const Outputs& outputs,
                                     const Tensor& d_o, const Gradients& gradients,
                                     const Tensor& workspace) {
  device::BackwardParams out{};
  fill_problem_parameters(out, p, inputs, outputs);
  out.o = outputs.o.data;
  out.lse = static_cast<const float*>(outputs.lse.data);
  out.d_o = d_o.data;
  out.d_o_strides = strides_of(d_o, p.layout_q);
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

void launch_gradient(const Kernel& kernel, const Problem& p, const BackwardConfig& config,
                     std::array<void*, 3>& arguments, const Context& context) {
  LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>(num_tiles(p, config));
  launch.block = kBackwardThreads;
  launch.shared_bytes = static_cast<unsigned>(config.shared_bytes());
  if (launch.grid[0] > 0) kernel.launch(launch, context.stream, arguments.data());
}

void launch_rows(const Kernel& kernel, const Problem& p, device::BackwardParams& parameters,
                 const Context& context) {
  constexpr std::int64_t kRowsOfBlock = 4;  // one warp each, 128 threads
  LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>((num_rows(p) + kRowsOfBlock - 1) / kRowsOfBlock);
  launch.block = 32 * kRowsOfBlock;
  std::array<void*, 1> arguments{&parameters};
  if (launch.grid[0] > 0) kernel.launch(launch, context.stream, arguments.data());
}

void launch_sink(const Kernel& kernel, const Problem& p, device::BackwardParams& parameters,
                 const Context& context) {
  constexpr unsigned kThreads = 1024;
  LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>(p.heads_q);
  launch.block = kThreads;
  launch.shared_bytes = kThreads / 32 * sizeof(float);
  std::array<void*, 1> arguments{&parameters};
  if (launch.grid[0] > 0) kernel.launch(launch, context.stream, arguments.data());
}

void launch_elements(const Kernel& kernel, std::int64_t count, void** arguments,
                     const Context& context) {
  constexpr unsigned kThreads = 256;
  LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  launch.block = kThreads;
  if (count > 0) kernel.launch(launch, context.stream, arguments);
}

// The gradients of the buffers: sums in float64 behind the terms of the rows, then float32.
void launch_buffers(const Kernels& kernels, const Problem& p, const BackwardConfig& config,
                    device::BackwardParams& parameters, std::vector<std::byte>& expressions,
                    const Inputs& inputs, const Gradients& gradients, const Context& context) {
  auto* const first = reinterpret_cast<double*>(static_cast<std::byte*>(context.workspace.data) +
                                                row_terms_bytes(p));
  std::vector<double*> sums;
  double* next = first;
  for (const auto& [name, tensor] : gradients.buffers) {
    sums.push_back(next);
    next += tensor.size();
  }
  long long count = next - first;
  if (count > num_buffer_elements(p)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the gradients of buffers have {} elements; accepted are the shapes of "
                            "the score's buffers, of {} (problem {})",
                            count, num_buffer_elements(p), to_string(p)));
  }
  double* from = first;
  std::array<void*, 2> cleared{&from, &count};
  launch_elements(*kernels.clear, count, cleared.data(), context);
  std::vector<std::byte> derivatives =
      pack_buffer_gradients(p.score, kernels.names, sums, inputs.buffers);
  std::array<void*, 3> arguments{&parameters, expressions.data(), derivatives.data()};
  launch_gradient(*kernels.buffers, p, config, arguments, context);
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

}  // namespace

Plan plan_backward(const Problem& problem, const PlanOptions& options) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = arch_of_capability(device.arch);
  if (arch.number < 80) {
    throw Error(ErrorCode::unsupported,
                fmt::format("device cuda:{} ({}) is {}; accepted are sm_80 and up", device.ordinal,
                            device.name, to_string(arch)));
  }
  check_backward(problem, options.kernel);
  if (options.algorithm != Algorithm::automatic &&
      options.algorithm != Algorithm::flash_attention_2) {
    throw Error(ErrorCode::unsupported,
                fmt::format("algorithm is {}; accepted by backward on the cuda backend is "
                            "flash_attention_2 (problem {})",
                            name(options.algorithm), to_string(problem)));
  }
  const BackwardConfig config = choose_backward(problem, {}, Gradient::dk);
  Plan plan;
  plan.problem = problem;
  plan.phase = Phase::backward;
  plan.backend = Backend::cuda;
  plan.kernel = options.kernel;
  plan.algorithm = Algorithm::flash_attention_2;
  plan.compute = DType::f32;
  plan.block_q = config.block_n;
  plan.block_k = plan.rows_per_task = config.block_m;
  plan.tasks = num_tiles(problem, config);
  plan.workspace_bytes = row_terms_bytes(problem) +
                         num_buffer_elements(problem) * static_cast<std::int64_t>(sizeof(double));
  plan.launch.kernel = kBackwardKernel;
  plan.launch.arch = to_string(arch);
  plan.launch.grid = {plan.tasks, 1, 1};
  plan.launch.threads = kBackwardThreads;
  plan.launch.shared_bytes = config.shared_bytes();
  plan.launch.stages = 1;
  plan.reasons.emplace_back(
      "float32 arithmetic without tensor cores; dQ, dK and dV have a pass each, so that nothing is "
      "added in memory");
  plan.state = std::make_shared<BackwardState>();
  return plan;
}

void run_backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, const Tensor& d_o,
                  const Gradients& gradients, const Context& context) {
  const Problem& p = plan.problem;
  const ContextGuard guard(plan.device.index);
  const BackwardTensors tensors{inputs.seqused_q.given(), inputs.seqused_k.given()};
  device::BackwardParams parameters =
      parameters_of(p, inputs, outputs, d_o, gradients, context.workspace);
  std::vector<std::byte> expressions = pack_expressions(p.mask, score_expression(p), inputs.buffers,
                                                        p.scale(), kBackwardPreciseMath);
  std::vector<std::byte> slope = pack_slope(p.score, inputs.buffers);
  const Kernels kernels = kernels_of(plan, tensors, names_of(gradients.buffers), inputs, context);
  launch_rows(*kernels.rows, p, parameters, context);
  std::array<void*, 3> arguments{&parameters, expressions.data(), slope.data()};
  const std::array<const void*, kGradients.size()> asked{parameters.dq, parameters.dk,
                                                         parameters.dv};
  for (std::size_t i = 0; i < kGradients.size(); ++i) {
    if (asked[i] == nullptr) continue;
    launch_gradient(*kernels.gradients[i], p, choose_backward(p, tensors, kGradients[i]), arguments,
                    context);
  }
  if (parameters.dsink != nullptr) launch_sink(*kernels.sink, p, parameters, context);
  if (!gradients.buffers.empty()) {
    launch_buffers(kernels, p, choose_backward(p, tensors, Gradient::buffers), parameters,
                   expressions, inputs, gradients, context);
  }
}

std::vector<Source> backward_sources(const Problem& problem, std::string_view kernel) {
  check_backward(problem, kernel);
  std::vector<Source> sources{backward_rows_source(choose_backward(problem, {}, Gradient::dq))};
  for (const Gradient gradient : kGradients) {
    sources.push_back(backward_source(problem, choose_backward(problem, {}, gradient), {}));
  }
  std::vector<std::string> names;
  if (!problem.score.empty()) {
    for (const auto& buffer : expr::buffers(problem.score)) {
      if (is_floating(buffer->tensor().dtype)) names.push_back(buffer->name());
    }
  }
  if (!names.empty()) {
    sources.push_back(backward_clear_source());
    sources.push_back(
        backward_source(problem, choose_backward(problem, {}, Gradient::buffers), names));
    sources.push_back(backward_store_source());
  }
  if (problem.sink) sources.push_back(backward_sink_source());
  return sources;
}

}  // namespace attn::cuda
