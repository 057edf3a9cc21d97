#include "command/cuda_timing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "attn/error.hpp"
#include "cuda/driver/memory.hpp"

namespace attn::command {
namespace {

using verify::CaseData;
using verify::DeviceData;
using verify::Storage;

constexpr double kTimesL2 = 4;
constexpr int kMaxCopies = 256;
// A graph runs for about as long as this, which events resolve to 0.01 %.
constexpr double kGraphSeconds = 5e-3;
constexpr int kMaxCallsOfGraph = 1000;

// Copies of the tensors that a run of calls goes round.
int copies_for(const Plan& plan) {
  const auto l2 = static_cast<double>(cuda::device_info(plan.device.index).l2_bytes);
  const double copies = std::ceil(kTimesL2 * l2 / std::max(plan.bytes, 1.0));
  return static_cast<int>(std::clamp(copies, 1.0, double{kMaxCopies}));
}

// Checksums of the results that have the same bits in every call.
std::vector<std::uint64_t> checksums(const Plan& plan, const CaseData& data) {
  const auto may_differ = [&](const Storage& storage) {
    if (plan.phase == Phase::forward || plan.deterministic) return false;
    const auto is = [&](const Tensor& tensor) {
      return tensor.given() && tensor.data == storage.tensor().data;
    };
    return is(data.gradients.dq) ||
           std::ranges::any_of(data.gradients.buffers,
                               [&](const auto& gradient) { return is(gradient.second); });
  };
  std::vector<std::uint64_t> sums;
  for (const Storage* storage : data.storages(plan.phase, false)) {
    if (!may_differ(*storage)) sums.push_back(storage->checksum());
  }
  return sums;
}

}  // namespace

GpuCalls::GpuCalls(const Plan& plan, CaseData& data, const Context& context)
    : plan_(plan), data_(data), workspace_(plan), stream_(plan.device.index), context_(context) {
  context_.stream = stream_.handle();
  context_.workspace = workspace_.tensor();
  data.poison();
  if (plan.phase == Phase::backward) {
    verify::forward_on_device(data, {.device = plan.device}, context, true);
  }
  copies_.emplace_back(data, plan.phase, plan.device);
}

void GpuCalls::call(const DeviceData& on, const OutputGradients& d_outputs) const {
  if (plan_.phase == Phase::forward) {
    forward(plan_, on.inputs, on.outputs, context_);
  } else {
    backward(plan_, on.inputs, on.outputs, d_outputs, on.gradients, context_);
  }
}

void GpuCalls::compute_once() const {
  call(copies_.front());
  finish();
}

void GpuCalls::finish() const {
  stream_.synchronize();
  copies_.front().download();
  if (workspace_.overrun()) {
    throw Error(ErrorCode::internal, "memory around the workspace was written");
  }
}

Verification GpuCalls::verify() const {
  if (plan_.phase == Phase::forward) {
    compute_once();
    return verify_forward(plan_.problem, data_.inputs, data_.outputs, plan_.device.type);
  }
  Verification verification =
      verify_backward(plan_.problem, data_.inputs, data_.d_outputs(), data_.gradients,
                      plan_.device.type, [&](const OutputGradients& d_outputs) {
                        if (d_outputs.o.data == data_.d_o.data) return compute_once();
                        std::list<cuda::DeviceBuffer> memory;  // of the gradient of a few rows
                        call(copies_.front(), verify::upload(d_outputs.o, plan_.device, memory));
                        finish();
                      });
  compute_once();  // of the whole gradient, as the calls that are timed
  return verification;
}

template <class Work>
double GpuCalls::seconds(const Work& work) const {
  cuda::Event start(plan_.device.index);
  cuda::Event end(plan_.device.index);
  start.record(stream_.handle());
  work();
  end.record(stream_.handle());
  end.synchronize();
  return cuda::seconds_between(start, end);
}

Timing GpuCalls::time(const TimingRule& rule) {
  while (static_cast<int>(copies_.size()) < copies_for(plan_)) {
    copies_.emplace_back(data_, plan_.phase, plan_.device);
  }
  const double alone = seconds([&] { call(copies_.front()); });
  const auto copies = static_cast<int>(copies_.size());
  const int wanted = static_cast<int>(
      std::clamp(kGraphSeconds / std::max(alone, 1e-6), 1.0, double{kMaxCallsOfGraph}));
  const int calls = (wanted + copies - 1) / copies * copies;
  const cuda::Graph graph(stream_, [&] {
    auto on = copies_.begin();
    for (int i = 0; i < calls; ++i) {
      call(*on);
      if (++on == copies_.end()) on = copies_.begin();
    }
  });
  const auto launch = [&] { graph.launch(stream_.handle()); };
  seconds(launch);
  Timing timing;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto taken = [&] { return static_cast<int>(timing.seconds.size()); };
  while (taken() < rule.max_calls &&
         (taken() < rule.min_calls ||
          std::chrono::duration<double>(Clock::now() - begin).count() < rule.seconds)) {
    timing.seconds.push_back(seconds(launch) / calls);
  }
  return timing;
}

void measure_on_gpu(BenchRow& row, CaseData& data, const Context& context, const TimingRule& rule,
                    Peaks& peaks) {
  GpuCalls calls(row.plan, data, context);
  const Verification verification = calls.verify();
  const std::string damage = data.damage();
  row.correct = verification.passed() && damage.empty();
  row.checked = verification.extent;
  row.worst = damage.empty() ? "" : damage + " was written; ";
  if (!verification.comparisons.empty()) row.worst += to_string(verification.worst());
  if (!row.correct) return;
  const std::vector<std::uint64_t> verified = checksums(row.plan, data);
  row.peak_gflops = peaks.cuda.gflops(row.plan.problem.dtype, row.plan.device.index, context);
  row.read_gbps = peaks.cuda.gbps(row.plan.device.index);
  row.timing = calls.time(rule);
  calls.finish();
  if (checksums(row.plan, data) != verified) {
    row.correct = false;
    row.worst = "the timed calls gave other bits than the verified one";
  }
}

}  // namespace attn::command
