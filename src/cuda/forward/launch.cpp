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

// Whether sequences of a packed Q differ much in their numbers of queries, by the rows that it has.
// Where bits must not depend on the batch each sequence's own number decides in every call.
bool is_uneven(const Plan& plan, const Inputs& inputs) {
  const Problem& p = plan.problem;
  if (p.layout_q != Layout::packed) return false;
  return plan.batch_invariant ||
         core::Size(p.batch) * p.seqlen_q >= core::Size(2) * inputs.q.shape[0];
}

ForwardTensors tensors_of(const Plan& plan, const Inputs& inputs, const Outputs& outputs) {
  ForwardTensors tensors;
  tensors.uneven_q = is_uneven(plan, inputs);
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
  ForwardTensors tensors = tensors_of(plan, inputs, outputs);
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
  if (run->pass.config.kernel->reads_maps) {
    maps = run->pass.config.shape->maps(run->pass.config, problem, inputs, outputs);
    if (!maps) {
      tensors.mapped = false;
      run = find();
    }
  }
  core::CallMemory memory;
  std::pmr::vector<std::byte> expressions(run->expressions.size(), &memory.resource());
  run->expressions.pack(inputs.buffers, expressions.data());
  const auto launch = [&](const ForwardPass& pass, ForwardMaps* its_maps) {
    device::ForwardParams parameters = pass.parameters;
    fill_forward_tensors(parameters, problem, pass.config, inputs, outputs,
                         static_cast<std::byte*>(context.workspace.data) + pass.workspace_offset);
    if (pass.deals_tiles) parameters.counter = work_counter(context.stream);
    std::array<void*, 3> arguments{&parameters, expressions.data(), its_maps};
    if (pass.classify != nullptr) {
      pass.classify->launch(pass.classify_launch, context.stream, arguments.data());
    }
    const int launches = pass.config.kernel->launches;
    for (parameters.pass = 0; parameters.pass < launches; ++parameters.pass) {
      pass.forward->launch(pass.forward_launch, context.stream, arguments.data());
    }
    if (pass.combine != nullptr) {
      pass.combine->launch(pass.combine_launch, context.stream, arguments.data());
    }
  };
  launch(run->pass, maps ? &*maps : nullptr);
  if (run->decoding) launch(*run->decoding, nullptr);
}

}  // namespace attn::cuda
