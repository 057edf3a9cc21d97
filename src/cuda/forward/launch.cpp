// A forward pass with the tensors of a call.
#include <array>
#include <memory_resource>
#include <optional>
#include <vector>

#include "core/validate/validate.hpp"
#include "cuda/driver/counters.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/forward/forward.hpp"
#include "cuda/forward/parameters.hpp"
#include "cuda/forward/prepare.hpp"
#include "cuda/plan_state.hpp"

namespace attn::cuda {
namespace {

ForwardTensors tensors_of(const Inputs& inputs, const Outputs& outputs) {
  ForwardTensors tensors;
  tensors.seqused_q = inputs.seqused_q.given();
  tensors.seqused_k = inputs.seqused_k.given();
  for (const Tensor* t : {&inputs.q, &inputs.k, &inputs.v, &outputs.o}) {
    tensors.aligned = tensors.aligned && alignment_of(*t) % 16 == 0;
  }
  // As of multi-head latent attention: the address of each key's row is that of its row of V.
  tensors.v_in_k = inputs.k.data == inputs.v.data && inputs.k.strides == inputs.v.strides &&
                   inputs.k.rank == inputs.v.rank;
  return tensors;
}

}  // namespace

void run_forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                 const Context& context) {
  const Problem& problem = plan.problem;
  if (problem.batch == 0 || problem.seqlen_q == 0 || problem.heads_q == 0) return;
  const ContextGuard guard(plan.device.index);
  ForwardTensors tensors = tensors_of(inputs, outputs);
  std::optional<ForwardRun> own;
  const auto find = [&] {
    return &run_of(
        plan, own,
        [&](const ForwardRun& run) {
          return run.signature.tensors == tensors &&
                 run.expressions.prints(run.signature.printed, inputs.buffers);
        },
        [&] {
          const ExpressionPack buffers = buffers_pack(problem.mask, problem.score);
          return prepare_forward(plan, {tensors, buffers.printed(inputs.buffers)}, context);
        });
  };
  const ForwardRun* run = find();
  std::optional<ForwardMaps> maps;
  if (run->config.kernel->reads_maps) {
    maps = run->config.shape->maps(run->config, problem, inputs, outputs);
    if (!maps) {
      tensors.mapped = false;
      run = find();
    }
  }
  device::ForwardParams parameters = run->parameters;
  fill_forward_tensors(parameters, problem, run->config, inputs, outputs, context.workspace);
  if (run->deals_tiles) parameters.counter = work_counter(context.stream);
  core::CallMemory memory;
  std::pmr::vector<std::byte> expressions(run->expressions.size(), &memory.resource());
  run->expressions.pack(inputs.buffers, expressions.data());
  std::array<void*, 3> arguments{&parameters, expressions.data(), maps ? &*maps : nullptr};
  if (run->classify != nullptr) {
    run->classify->launch(run->classify_launch, context.stream, arguments.data());
  }
  const int launches = run->config.kernel->launches;
  for (parameters.pass = 0; parameters.pass < launches; ++parameters.pass) {
    run->forward->launch(run->forward_launch, context.stream, arguments.data());
  }
  if (run->combine != nullptr) {
    run->combine->launch(run->combine_launch, context.stream, arguments.data());
  }
}

}  // namespace attn::cuda
