// Passes on a GPU, as `attn bench` times and `attn io --measure` counts them.
#pragma once

#include <list>

#include "command/bench_row.hpp"
#include "command/verify.hpp"
#include "verify/device_data.hpp"

namespace attn::command {

// Calls of a plan on the GPU, in a stream of their own.
class GpuCalls {
 public:
  // Poisons the outputs of `data`. Backward it then runs the forward pass on the GPU, for O and
  // LSE. `plan` and `data` outlive this. Throws as forward.
  GpuCalls(const Plan& plan, verify::CaseData& data, const Context& context);

  // One call. Waits; the results come back into `data`.
  void compute_once() const;
  // Compares a call with fp64. Afterwards `data` holds the results of a call.
  Verification verify() const;
  // Times with events: many calls in one graph, so that the host's share does not count, going
  // round copies of the tensors that together are four times the L2 cache, so that every call finds
  // its inputs in memory.
  Timing time(const TimingRule& rule);
  // Waits; the results come back into `data`.
  void finish() const;

 private:
  void call(const verify::DeviceData& on, const OutputGradients& d_outputs) const;
  void call(const verify::DeviceData& on) const { call(on, on.d_outputs); }
  template <class Work>
  double seconds(const Work& work) const;

  const Plan& plan_;
  verify::CaseData& data_;
  verify::DeviceWorkspace workspace_;
  cuda::Stream stream_;
  Context context_;
  std::list<verify::DeviceData> copies_;
};

// row.plan is made. Verifies, times, and at last looks whether the results still have the bits that
// were verified, where equal inputs give equal bits (PlanOptions::deterministic). Throws as
// forward.
void measure_on_gpu(BenchRow& row, verify::CaseData& data, const Context& context,
                    const TimingRule& rule, Peaks& peaks);

}  // namespace attn::command
