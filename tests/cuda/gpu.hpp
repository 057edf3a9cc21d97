// What the tests that run kernels share.
#pragma once

#include "attn/error.hpp"
#include "conformance/support.hpp"
#include "cuda/support.hpp"
#include "verify/conformance.hpp"
#include "verify/device_data.hpp"

namespace attn::cuda {

inline constexpr Device kGpu{DeviceType::cuda, 0};

// Why no kernel takes the problem; empty when one does.
inline std::string unsupported(const Problem& problem) {
  try {
    make_plan(problem, Phase::forward, {.device = kGpu});
    return {};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return error.what();
  }
}

// A case on the GPU, ready to run in a stream of its own.
struct GpuCase {
  explicit GpuCase(verify::CaseData& host)
      : data(host, Phase::forward, kGpu),
        plan(make_plan(host.problem, Phase::forward, {.device = kGpu})),
        workspace(plan),
        stream(kGpu.index) {}

  void forward() const {
    Context context;
    context.stream = stream.handle();
    context.workspace = workspace.tensor();
    attn::forward(plan, data.inputs, data.outputs, context);
  }

  verify::DeviceData data;
  Plan plan;
  verify::DeviceWorkspace workspace;
  Stream stream;
};

// Of the bytes of O and LSE on the host.
inline std::vector<std::uint64_t> output_bits(const verify::CaseData& data) {
  std::vector<std::uint64_t> sums;
  for (const verify::Storage* storage : data.storages(Phase::forward, false)) {
    sums.push_back(storage->checksum());
  }
  return sums;
}

// Whether the GPU has too little free memory for a case with the hint `far`, which may take 80 GB.
inline bool without_memory(const verify::Case& c, const verify::Report& report) {
  return c.hints.far && report.refusal == ErrorCode::out_of_memory;
}
inline constexpr const char* kWithoutMemory =
    "skipped: the GPU has too little memory, or other processes hold it";

}  // namespace attn::cuda

#define ATTN_NEEDS_KERNEL(problem)                                                    \
  if (const std::string reason = ::attn::cuda::unsupported(problem); !reason.empty()) \
  GTEST_SKIP() << "skipped: " << reason
