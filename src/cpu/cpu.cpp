#include "cpu/cpu.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "attn/error.hpp"
#include "core/problem/max_logit.hpp"
#include "cpu/backward/backward.hpp"
#include "cpu/expressions.hpp"
#include "cpu/f64/f64.hpp"
#include "cpu/forward/forward.hpp"
#include "cpu/plan_check.hpp"
#include "cpu/plan_state.hpp"
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
                  compiled != nullptr ? *compiled : anew.emplace(plan), *workspace) {
    attention.places = core::made_for(plan)->places.get();
  }

  std::shared_ptr<Executor> executor;
  CallWorkspace workspace;
  Workers workers;
  const Expressions* compiled;
  std::optional<Expressions> anew;  // of a plan that was changed
  Attention attention;
};

// One algorithm for all sequences of `a`.
void forward_alike(const Attention& a, const Plan& plan, const Outputs& outputs,
                   const Workers& workers) {
  switch (plan.algorithm) {
    case Algorithm::standard:
      return forward_standard(a, plan, outputs, workers);
    case Algorithm::flash_attention:
    case Algorithm::block_sparse:
      return forward_flash_attention(a, plan, outputs, workers);
    case Algorithm::flash_decoding:
      return forward_flash_decoding(a, plan, outputs, workers);
    case Algorithm::memory_efficient:
      return forward_memory_efficient(a, plan, outputs, workers);
    case Algorithm::flash_attention_2:
    case Algorithm::automatic:  // check_plan refuses it
      forward_flash_attention_2(a, plan, outputs, workers);
  }
}

// The sequences of more than `least` and at most `most` queries.
std::pmr::vector<core::Sequence> sequences_of(const Attention& a, std::int64_t least,
                                              std::int64_t most, Workspace& workspace) {
  const auto is_one = [&](const core::Sequence& s) {
    return s.length_q > least && s.length_q <= most;
  };
  std::pmr::vector<core::Sequence> sequences(&workspace);
  sequences.reserve(
      static_cast<std::size_t>(std::count_if(a.sequences.begin(), a.sequences.end(), is_one)));
  std::copy_if(a.sequences.begin(), a.sequences.end(), std::back_inserter(sequences), is_one);
  return sequences;
}

// Each sequence of the batch by the plan for its length.
void forward_by_length(Call& call, const Plan& plan, std::span<const Plan> shorter,
                       const Inputs& inputs, const Outputs& outputs) {
  std::int64_t least = 0;
  const auto run = [&](const Plan& part, std::int64_t most) {
    Workspace& workspace = *call.workspace;
    const Workspace::Scope of_part(workspace);
    std::pmr::vector<core::Sequence> sequences =
        sequences_of(call.attention, std::exchange(least, most), most, workspace);
    if (sequences.empty()) return;
    Problem problem = part.problem;
    problem.dropout = plan.problem.dropout;  // whose seed may be of this call
    Attention a(problem, inputs, tile_ops(part.isa, part.compute), *Expressions::of(part),
                workspace, std::move(sequences));
    a.places = call.attention.places;
    a.lse_rest = call.attention.lse_rest;
    const Workers workers(*call.executor, std::min(part.threads, plan.threads), workspace);
    forward_alike(a, part, outputs, workers);
  };
  for (const Plan& part : shorter) run(part, part.problem.seqlen_q);
  run(plan, std::numeric_limits<std::int64_t>::max());
}

}  // namespace

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context) {
  core::MaxLogit(outputs.max_logit).clear();
  forward_pass(plan, inputs, outputs, context);
}

void forward_pass(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
                  const Context& context, const Tensor& lse_rest) {
  const Problem& p = plan.problem;
  if (p.seqlen_prefix > 0) return forward_prefix(plan, inputs, outputs, context);
  check_plan(plan, Phase::forward);
  // No row, however large the batch; packed tensors may have some behind the last sequence.
  if (p.seqlen_q == 0 && p.layout_q != Layout::packed) return;
  Call call(plan, inputs, plan.compute, context);
  call.attention.lse_rest = lse_rest;
  const Attention& a = call.attention;
  if (plan.compute == DType::f64) {
    f64::forward(a, plan, outputs, call.workers);
    return a.clear_unused_rows(outputs);
  }
  if (p.key_list > 0) {
    forward_key_list(a, plan, outputs, call.workers);
    return a.clear_unused_rows(outputs);
  }
  const std::span<const Plan> shorter = PlanState::shorter_of(plan);
  const bool all_alike =
      std::none_of(a.sequences.begin(), a.sequences.end(), [&](const core::Sequence& sequence) {
        return !shorter.empty() && sequence.length_q <= shorter.back().problem.seqlen_q;
      });
  if (all_alike) {
    forward_alike(a, plan, outputs, call.workers);
  } else {
    forward_by_length(call, plan, shorter, inputs, outputs);
  }
  a.clear_unused_rows(outputs);
}

void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const Context& context) {
  const Problem& p = plan.problem;
  check_plan(plan, Phase::backward);
  Call call(plan, inputs, plan.compute, context);
  const Attention& a = call.attention;
  if (plan.compute == DType::f64) {
    f64::backward(a, plan, outputs, d_outputs, gradients, call.workers);
    return a.clear_unused_gradients(gradients);
  }
  const GradientContext g(a, outputs, d_outputs, call.workers);
  if (gradients.dq.given() || gradients.dk.given() || gradients.dv.given()) {
    if (p.key_list > 0) {
      backward_key_list(a, g, plan, gradients, call.workers);
    } else if (plan.algorithm == Algorithm::standard) {
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
