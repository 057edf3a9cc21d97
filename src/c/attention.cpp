// Plans and calls.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attn/attn.h"
#include "attn/plan.hpp"
#include "attn/run.hpp"
#include "c/boundary.hpp"
#include "c/convert.hpp"
#include "c/handles.hpp"

using attn::c::context_of;
using attn::c::guarded;
using attn::c::inputs_of;
using attn::c::needed;
using attn::c::options_of;
using attn::c::outputs_of;
using attn::c::problem_of;

namespace {

attn::Phase phase_of(std::int32_t phase) {
  switch (phase) {
    case ATTN_FORWARD:
      return attn::Phase::forward;
    case ATTN_BACKWARD:
      return attn::Phase::backward;
    default:
      attn::c::refuse("phase is " + std::to_string(phase) +
                      "; accepted are ATTN_FORWARD, 0, and ATTN_BACKWARD, 1");
  }
}

}  // namespace

attn_status attn_forward(const attn_problem* problem, const attn_inputs* inputs,
                         const attn_outputs* outputs, const attn_options* options,
                         const attn_context* context) {
  return guarded([&] {
    attn::forward(problem_of(problem), inputs_of(inputs), outputs_of("outputs", outputs),
                  options_of(options), context_of(context));
  });
}

attn_status attn_backward(const attn_problem* problem, const attn_inputs* inputs,
                          const attn_outputs* outputs, const attn_output_gradients* d_outputs,
                          const attn_gradients* gradients, const attn_options* options,
                          const attn_context* context) {
  return guarded([&] {
    attn::backward(problem_of(problem), inputs_of(inputs), outputs_of("outputs", outputs),
                   attn::c::output_gradients_of(d_outputs), attn::c::gradients_of(gradients),
                   options_of(options), context_of(context));
  });
}

attn_status attn_plan_make(const attn_problem* problem, int32_t phase, const attn_inputs* inputs,
                           const attn_options* options, const attn_context* context,
                           attn_plan** plan) {
  return guarded([&] {
    attn_plan*& made = attn::c::result("plan", plan);
    attn::Problem whole = problem_of(problem);
    attn::PlanOptions asked = options_of(options);
    if (inputs != nullptr) {
      const attn::Inputs tensors = inputs_of(inputs);
      whole = attn::complete(whole, tensors);
      asked.device = tensors.q.device;
    }
    made = new attn_plan{attn::make_plan(whole, phase_of(phase), asked, context_of(context))};
  });
}

attn_status attn_run_forward(const attn_plan* plan, const attn_inputs* inputs,
                             const attn_outputs* outputs, const attn_context* context) {
  return guarded([&] {
    attn::run_forward(needed("plan", plan).plan, inputs_of(inputs), outputs_of("outputs", outputs),
                      context_of(context));
  });
}

attn_status attn_run_backward(const attn_plan* plan, const attn_inputs* inputs,
                              const attn_outputs* outputs, const attn_output_gradients* d_outputs,
                              const attn_gradients* gradients, const attn_context* context) {
  return guarded([&] {
    attn::run_backward(needed("plan", plan).plan, inputs_of(inputs), outputs_of("outputs", outputs),
                       attn::c::output_gradients_of(d_outputs), attn::c::gradients_of(gradients),
                       context_of(context));
  });
}

void attn_plan_free(attn_plan* plan) { delete plan; }

attn_status attn_plan_get(const attn_plan* plan, attn_plan_info* info) {
  return guarded([&] {
    const attn::Plan& from = needed("plan", plan).plan;
    attn_plan_info told{};
    told.workspace_bytes = from.workspace_bytes;
    told.tasks = from.tasks;
    told.bytes = from.bytes;
    told.batch = from.problem.batch;
    told.seqlen_q = from.problem.seqlen_q;
    told.seqlen_k = from.problem.seqlen_k;
    told.heads_q = from.problem.heads_q;
    told.heads_k = from.problem.heads_k;
    told.head_dim = from.problem.head_dim;
    told.head_dim_v = from.problem.head_dim_v;
    told.device = attn::c::device_of(from.device);
    told.phase = static_cast<std::int32_t>(from.phase);
    told.threads = from.threads;
    told.num_splits = from.num_splits;
    told.block_q = from.block_q;
    told.block_k = from.block_k;
    // Names of enumerators are literals, which end with 0.
    told.backend = attn::name(from.backend).data();
    told.algorithm = attn::name(from.algorithm).data();
    told.isa = attn::name(from.isa).data();
    told.kernel = from.launch.kernel.c_str();
    attn::c::give("info", told, info);
  });
}

attn_status attn_plan_text(const attn_plan* plan, char* text, size_t capacity, size_t* length) {
  return guarded(
      [&] { attn::c::give_text(to_string(needed("plan", plan).plan), text, capacity, length); });
}

attn_status attn_plan_flops(const attn_plan* plan, double* flops) {
  return guarded([&] { attn::c::result("flops", flops) = needed("plan", plan).plan.flops(); });
}

attn_status attn_merge(const attn_outputs* const* parts, size_t count, const attn_outputs* result,
                       const attn_context* context) {
  return guarded([&] {
    std::vector<attn::Outputs> taken;
    for (size_t i = 0; i < count; ++i) {
      taken.push_back(outputs_of("parts[" + std::to_string(i) + "]", (&needed("parts", parts))[i]));
    }
    attn::merge(taken, outputs_of("result", result), context_of(context));
  });
}
