// The counters of a GPU for `attn io --measure`: ncu runs `attn launch`, one pass of a problem.
#pragma once

#include <filesystem>
#include <string>

#include "attn/plan.hpp"
#include "traffic/ncu.hpp"
#include "verify/data.hpp"

namespace attn::command {

// What of a problem is run.
struct GpuPass {
  std::string descriptor{};
  Phase phase = Phase::forward;
  PlanOptions options{};  // device, algorithm, kernel
};

// Nsight Compute, as it is found on the PATH.
class Ncu {
 public:
  // Asks it which counters it knows. Throws Error(unavailable) where there is none.
  Ncu();
  // Runs a pass under ncu, in a process of its own. Throws Error(unavailable) with ncu's last words
  // where it counted nothing.
  traffic::GpuCounts count(const GpuPass& pass) const;

 private:
  std::filesystem::path program_;
  std::string metrics_;
};

// Runs the pass on the GPU and compares it with fp64: empty, or what is wrong with its results.
// Throws as make_plan and forward do.
std::string why_wrong(const GpuPass& pass, verify::CaseData& data);

}  // namespace attn::command
