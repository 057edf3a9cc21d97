#include "cpu/cpu.hpp"

#include <cstring>

#include "attn/error.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/forward/forward.hpp"
#include "cpu/plan_check.hpp"

namespace attn::cpu {
void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context) {
  check_plan(plan, Phase::forward);
  const Attention a(plan.problem, inputs, tile_ops(plan.isa, plan.compute));
  const std::shared_ptr<Executor> executor = executor_of(context);
  switch (plan.algorithm) {
    case Algorithm::standard:
      forward_standard(a, plan, outputs, *executor);
      break;
    case Algorithm::flash_attention:
    case Algorithm::block_sparse:
      forward_flash_attention(a, plan, outputs, *executor);
      break;
    case Algorithm::flash_decoding:
      forward_flash_decoding(a, plan, outputs, *executor);
      break;
    case Algorithm::memory_efficient:
      forward_memory_efficient(a, plan, outputs, *executor);
      break;
    default:
      forward_flash_attention_2(a, plan, outputs, *executor);
  }
  a.clear_unused_rows(outputs);
}

void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs, const Tensor& d_o,
              const Gradients& gradients, const Context& context) {
  check_plan(plan, Phase::backward);
  const Attention a(plan.problem, inputs, tile_ops(plan.isa, DType::f32));
  const std::shared_ptr<Executor> executor = executor_of(context);
  const GradientContext g(a, outputs, d_o, *executor);
  if (gradients.dq.given() || gradients.dk.given() || gradients.dv.given()) {
    if (plan.algorithm == Algorithm::standard) {
      backward_standard(a, g, gradients, *executor);
    } else {
      backward_flash(a, g, plan, gradients, *executor);
    }
  }
  if (gradients.dsink.given()) backward_sink(a, g, gradients);
  if (!gradients.buffers.empty()) backward_buffers(a, g, gradients, *executor);
  a.clear_unused_gradients(gradients);
}

}  // namespace attn::cpu
