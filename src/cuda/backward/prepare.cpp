#include "cuda/backward/prepare.hpp"

#include <utility>

#include "core/tensor/size.hpp"
#include "core/validate/plan_field.hpp"
#include "cuda/backward/source.hpp"
#include "cuda/backward/workspace.hpp"
#include "cuda/codegen/expression_gradients.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/kernels/backward_tiles.hpp"
#include "cuda/problem_parameters.hpp"

namespace attn::cuda {

using device::Gradient;

namespace {

GradientLaunch gradient_launch(const Problem& p, BackwardConfig config) {
  GradientLaunch made;
  made.config = std::move(config);
  made.launch.grid[0] = num_tiles(p, made.config).value();
  made.launch.block = static_cast<unsigned>(made.config.tiling.threads());
  made.launch.shared_bytes = static_cast<unsigned>(made.config.tiling.shared_bytes);
  return made;
}

// Of 128 threads.
LaunchConfig rows_launch(const Problem& p, std::int64_t rows_of_block) {
  LaunchConfig launch;
  launch.grid[0] = core::divide_up(num_rows(p), rows_of_block).value();
  launch.block = 128;
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

}  // namespace

BackwardRun prepare_backward(const Plan& plan, const BackwardSignature& signature,
                             const Context& context) {
  const Asked& asked = signature.asked;
  const Problem& p = plan.problem;
  const BackwardWish wish{arch_of_capability(device_info(plan.device.index).arch), plan.kernel,
                          plan.deterministic};
  // A plan whose problem was changed by hand needs the workspace of what it is now.
  core::check_plan_workspace(plan, checked_workspace(p, choose_backward_kernel(p, {}, wish), wish));
  const BackwardKernel& kernel = choose_backward_kernel(p, asked.tensors, wish);
  BackwardRun run{.signature = signature};
  fill_problem_parameters(run.parameters, p);
  run.all_buffers = buffers_pack(p.mask, p.score);
  run.slope = slope_pack(p.score);
  run.kernel_offset = kernel_offset(p, plan.deterministic).value();
  run.expressions = expression_pack(p.mask, score_expression(p), p.scale(),
                                    backward_precise_math(kernel, p.dtype));
  std::vector<KernelRequest> requests;
  const auto ask = [&](std::shared_ptr<const Kernel>& made, Source source) {
    requests.push_back({std::move(source), &made});
  };
  const auto ask_gradient = [&](GradientLaunch& gradient) {
    ask(gradient.kernel, backward_source(p, gradient.config, signature.names, signature.printed));
  };
  for (BackwardConfig& config :
       backward_launches(kernel, p, asked.tensors, asked.gradients, wish)) {
    run.gradients.push_back(gradient_launch(p, std::move(config)));
  }
  if (kernel.one_pass) {
    const BackwardConfig& config = run.gradients.front().config;
    ask(run.one_pass.rows, backward_one_pass_rows_source(config, asked.tensors.aligned_o));
    ask(run.one_pass.dq, backward_one_pass_dq_source(config));
    if (!kernel.query_words.empty()) {
      ask(run.one_pass.words, backward_words_source(p, config, signature.printed));
    }
    set_one_pass_parameters(run.parameters, p, config);
  }
  const BackwardConfig dq = backward_config(kernel, p, asked.tensors, Gradient::dq, wish);
  if (kernel.reads_row_terms || asked.sink || !signature.names.empty()) {
    run.rows.launch = rows_launch(p, 4);
    ask(run.rows.kernel, backward_rows_source(dq));
  }
  if (dq.features.far_rows) {
    run.far_rows.launch = rows_launch(p, 32);
    run.any_far_row = row_terms_bytes(p).value() - kAnyFarRowBytes;
    ask(run.far_rows.kernel, backward_far_rows_source(p, dq, signature.printed));
  }
  for (GradientLaunch& gradient : run.gradients) ask_gradient(gradient);
  if (asked.sink) {
    run.sink.launch = sink_launch(p);
    ask(run.sink.kernel, backward_sink_source(p, dq));
  }
  if (!signature.names.empty()) {
    BufferLaunches& launches = run.buffers.emplace(p, asked.tensors, signature.names, wish,
                                                   device_info(plan.device.index).sm_count);
    ask(launches.clear, backward_clear_source());
    ask(launches.add, backward_source(p, launches.config, signature.names, signature.printed));
    ask(launches.store, backward_store_source(launches.config));
  }
  run.places = RowPlaces::of(plan, requests);
  get_kernels(plan.device.index, requests, context);
  if (kernel.one_pass) run.one_pass.main = run.gradients.front().kernel;
  return run;
}

}  // namespace attn::cuda
