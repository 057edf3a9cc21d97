// One measured line of `attn bench`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "attn/plan.hpp"
#include "command/cuda_ceilings.hpp"
#include "command/timing.hpp"
#include "verify/data.hpp"

namespace attn::command {

// The ceilings of this machine, measured when first asked for and kept.
class Peaks {
 public:
  double gflops(DType dtype, const Context& context);
  double read_gbps(const Context& context);
  CudaCeilings cuda;

 private:
  std::map<std::tuple<DType, InstructionSet, int>, double> gflops_;
  std::map<std::tuple<InstructionSet, int>, double> read_gbps_;
};

struct BenchRow {
  std::string descriptor;
  Plan plan;
  double flops = 0;     // as Plan::flops, of the lengths that the case has
  double bytes = 0;     // likewise Plan::bytes
  std::string refused;  // why there is no result; the rest is empty then
  bool correct = false;
  std::string checked, worst;               // what was compared, and the worst comparison
  Timing timing;                            // empty if not correct
  double peak_gflops = 0, read_gbps = 0;    // GPU: of matrix products; of a copy
  std::optional<std::int64_t> peak_memory;  // growth of resident memory during a call, bytes

  double gflops() const { return flops / timing.median() * 1e-9; }
  double gbps() const { return bytes / timing.median() * 1e-9; }
  bool on_gpu() const { return plan.device.type == DeviceType::cuda; }
  // Reading and writing takes longer than computing when both run at their peak: decoding does.
  bool memory_bound() const { return bytes * peak_gflops > flops * read_gbps; }
};

// Verifies, measures memory, then times. `data` is of the case and is used again for other rows.
BenchRow measure_row(const verify::Case& c, verify::CaseData& data, Phase phase,
                     const PlanOptions& options, const Context& context, const TimingRule& rule,
                     Peaks& peaks);

}  // namespace attn::command
