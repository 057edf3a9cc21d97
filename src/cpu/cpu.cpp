#include "cpu/cpu.hpp"

#include <optional>

#include "attn/error.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/expressions.hpp"
#include "cpu/f64/f64.hpp"
#include "cpu/forward/forward.hpp"
#include "cpu/plan_check.hpp"
#include "cpu/prefix.hpp"
#include "cpu/workspace_store.hpp"

namespace attn::cpu {
namespace {

// What one call works with.
struct Call {
  Call(const Plan& plan, const Inputs& inputs, DType operand, const Context& context)
      : executor(executor_of(context)),
        workspace(*executor, context.workspace),
        workers(*executor, plan.threads, *workspace),
        compiled(Expressions::of(plan)),
        attention(plan.problem, inputs, tile_ops(plan.isa, operand),
                  compiled != nullptr ? *compiled : anew.emplace(plan), *workspace) {}

  std::shared_ptr<Executor> executor;
  CallWorkspace workspace;
  Workers workers;
  const Expressions* compiled;
  std::optional<Expressions> anew;  // of a plan that was changed
  Attention attention;
};

}  // namespace

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context) {
  const Problem& p = plan.problem;
  if (p.seqlen_prefix > 0) return forward_prefix(plan, inputs, outputs, context);
  check_plan(plan, Phase::forward);
  // No row, however large the batch; packed tensors may have some behind the last sequence.
  if (p.seqlen_q == 0 && p.layout_q != Layout::packed) return;
  Call call(plan, inputs, plan.compute, context);
  const Attention& a = call.attention;
  if (plan.compute == DType::f64) {
    f64::forward(a, plan, outputs, call.workers);
    return a.clear_unused_rows(outputs);
  }
  if (p.key_list > 0) {
    forward_key_list(a, plan, outputs, call.workers);
    return a.clear_unused_rows(outputs);
  }
  switch (plan.algorithm) {
    case Algorithm::standard:
      forward_standard(a, plan, outputs, call.workers);
      break;
    case Algorithm::flash_attention:
    case Algorithm::block_sparse:
      forward_flash_attention(a, plan, outputs, call.workers);
      break;
    case Algorithm::flash_decoding:
      forward_flash_decoding(a, plan, outputs, call.workers);
      break;
    case Algorithm::memory_efficient:
      forward_memory_efficient(a, plan, outputs, call.workers);
      break;
    case Algorithm::flash_attention_2:
    case Algorithm::automatic:  // check_plan refuses it
      forward_flash_attention_2(a, plan, outputs, call.workers);
  }
  a.clear_unused_rows(outputs);
}

void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const Context& context) {
  check_plan(plan, Phase::backward);
  Call call(plan, inputs, plan.compute, context);
  const Attention& a = call.attention;
  if (plan.compute == DType::f64) {
    f64::backward(a, plan, outputs, d_outputs, gradients, call.workers);
    return a.clear_unused_gradients(gradients);
  }
  const GradientContext g(a, outputs, d_outputs, call.workers);
  if (gradients.dq.given() || gradients.dk.given() || gradients.dv.given()) {
    if (plan.algorithm == Algorithm::standard) {
      backward_standard(a, g, gradients, call.workers);
    } else {
      backward_flash(a, g, plan, gradients, call.workers);
    }
  }
  if (gradients.dsink.given()) backward_sink(a, g, gradients);
  if (!gradients.buffers.empty()) backward_buffers(a, g, gradients, call.workers);
  a.clear_unused_gradients(gradients);
}

}  // namespace attn::cpu
