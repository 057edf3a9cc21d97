#include "command/bench_row.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"
#include "attn/machine.hpp"
#include "command/cuda_timing.hpp"
#include "command/memory.hpp"
#include "command/verify.hpp"
#include "core/problem/costs.hpp"
#include "verify/conformance.hpp"

namespace attn::command {
namespace {

// A problem without queries has nothing to compare.
std::string worst_of(const Verification& verification) {
  return verification.comparisons.empty() ? std::string() : to_string(verification.worst());
}

void check_forward(BenchRow& row, const verify::CaseData& data) {
  const Verification verification =
      verify_forward(row.plan.problem, data.inputs, data.outputs, row.plan.device.type);
  row.correct = verification.passed();
  row.checked = verification.extent;
  row.worst = worst_of(verification);
}

// Checks by the driver of the conformance tests, on data of its own.
void check_backward_whole(BenchRow& row, const verify::Case& c, const PlanOptions& options,
                          const Context& context) {
  const verify::Report report = verify::check(c,
                                              {.phase = Phase::backward,
                                               .backend = options.backend,
                                               .algorithm = options.algorithm,
                                               .isa = context.isa,
                                               .executor = context.executor},
                                              1);
  if (report.status == verify::Status::unsupported) {
    throw Error(ErrorCode::unsupported, report.message);
  }
  row.correct = report.status == verify::Status::passed;
  row.checked = "all rows";
  row.worst = report.message;
  const Verification verification{.extent = {}, .comparisons = report.comparisons};
  row.worst += worst_of(verification);
}

void check_backward_sampled(BenchRow& row, verify::CaseData& data, const Context& context) {
  const Verification verification = verify_backward_sampled(
      row.plan.problem, data.inputs, data.d_o, data.gradients, row.plan.device.type,
      [&](const OutputGradients& d_outputs) {
        backward(row.plan, data.inputs, data.outputs, d_outputs, data.gradients, context);
      });
  row.correct = verification.passed();
  row.checked = verification.extent;
  row.worst = worst_of(verification);
}

void measure(BenchRow& row, const verify::Case& c, verify::CaseData& data,
             const PlanOptions& options, const Context& context, const TimingRule& rule,
             Peaks& peaks) {
  const bool is_forward = row.plan.phase == Phase::forward;
  const auto call_in = [&](const Context& where) {
    if (is_forward) {
      forward(row.plan, data.inputs, data.outputs, where);
    } else {
      backward(row.plan, data.inputs, data.outputs, data.d_outputs(), data.gradients, where);
    }
  };
  const auto call = [&] { call_in(context); };
  data.poison();
  if (is_forward) {
    call();
    check_forward(row, data);
  } else {
    forward(data.problem, data.inputs, data.outputs, {.backend = options.backend}, context);
    if (is_small(row.plan.problem)) {
      check_backward_whole(row, verify::at_full_length(c), options, context);
    } else {
      check_backward_sampled(row, data, context);
    }
  }
  if (!row.correct) return;
  // Memory is measured with an executor that keeps none yet.
  Context fresh = context;
  fresh.executor = make_thread_pool(context.executor->concurrency());
  row.peak_memory = peak_memory([&] { call_in(fresh); });
  row.peak_gflops = peaks.gflops(row.plan.problem.dtype, context);
  row.read_gbps = peaks.read_gbps(context);
  row.timing = time_calls(call, rule);
}

}  // namespace

double Peaks::gflops(DType dtype, const Context& context) {
  const auto [at, added] =
      gflops_.try_emplace({dtype, context.isa, context.executor->concurrency()});
  if (added) at->second = measure_peak_gflops(dtype, context, 0.4);
  return at->second;
}

double Peaks::read_gbps(const Context& context) {
  const auto [at, added] = read_gbps_.try_emplace({context.isa, context.executor->concurrency()});
  if (added) at->second = measure_read_gbps(context);
  return at->second;
}

BenchRow measure_row(const verify::Case& c, verify::CaseData& data, Phase phase,
                     const PlanOptions& options, const Context& context, const TimingRule& rule,
                     Peaks& peaks) {
  BenchRow row;
  row.descriptor = verify::to_string(c);
  row.plan.phase = phase;
  row.plan.algorithm = options.algorithm;
  row.plan.device = options.device;
  row.plan.threads = context.executor->concurrency();
  try {
    row.plan = make_plan(complete(data.problem, data.inputs), phase, options, context);
    row.flops = core::flops(row.plan.problem, phase, data.inputs);
    row.bytes = core::bytes(row.plan.problem, phase, data.inputs);
    if (row.on_gpu()) {
      measure_on_gpu(row, data, context, rule, peaks);
    } else {
      measure(row, c, data, options, context, rule, peaks);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    row.refused = error.what();
  }
  return row;
}

}  // namespace attn::command
