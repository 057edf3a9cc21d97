#include "command/cuda_timing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "command/verify.hpp"
#include "cuda/driver/memory.hpp"
#include "harness/device_data.hpp"

namespace attn::command {
namespace {

using harness::CaseData;
using harness::DeviceData;

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

std::vector<std::uint64_t> checksums(const CaseData& data) {
  std::vector<std::uint64_t> sums;
  for (const harness::Storage* storage : data.storages(Phase::forward, false)) {
    sums.push_back(storage->checksum());
  }
  return sums;
}

class GpuRun {
 public:
  GpuRun(const Plan& plan, const CaseData& data, Context context)
      : plan_(plan), workspace_(plan), stream_(plan.device.index), context_(std::move(context)) {
    context_.stream = stream_.handle();
    context_.workspace = workspace_.tensor();
    copies_.emplace_back(data, Phase::forward, plan.device);
  }

  void call(const DeviceData& on) const { forward(plan_, on.inputs, on.outputs, context_); }

  // One call of the first copy, whose results come back to the host.
  void compute_once() const {
    call(copies_.front());
    finish();
  }
  void finish() const {
    stream_.synchronize();
    copies_.front().download();
    if (workspace_.overrun()) {
      throw Error(ErrorCode::internal, "memory around the workspace was written");
    }
  }

  Timing time(const CaseData& data, const TimingRule& rule) {
    while (static_cast<int>(copies_.size()) < copies_for(plan_)) {
      copies_.emplace_back(data, Phase::forward, plan_.device);
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

 private:
  template <class Work>
  double seconds(const Work& work) const {
    cuda::Event start(plan_.device.index);
    cuda::Event end(plan_.device.index);
    start.record(stream_.handle());
    work();
    end.record(stream_.handle());
    end.synchronize();
    return cuda::seconds_between(start, end);
  }

  const Plan& plan_;
  harness::DeviceWorkspace workspace_;
  cuda::Stream stream_;
  Context context_;
  std::list<DeviceData> copies_;
};

}  // namespace

void measure_on_gpu(BenchRow& row, CaseData& data, const Context& context, const TimingRule& rule,
                    Peaks& peaks) {
  data.poison();
  GpuRun run(row.plan, data, context);
  run.compute_once();
  const Verification verification =
      verify_forward(row.plan.problem, data.inputs, data.outputs, row.plan.device.type);
  const std::string damage = data.damage();
  row.correct = verification.passed() && damage.empty();
  row.checked = verification.extent;
  row.worst = damage.empty() ? "" : damage + " was written; ";
  if (!verification.comparisons.empty()) row.worst += to_string(verification.worst());
  if (!row.correct) return;
  const std::vector<std::uint64_t> verified = checksums(data);
  row.peak_gflops = peaks.cuda.gflops(row.plan.problem.dtype, row.plan.device.index, context);
  row.read_gbps = peaks.cuda.gbps(row.plan.device.index);
  row.timing = run.time(data, rule);
  run.finish();
  if (checksums(data) != verified) {
    row.correct = false;
    row.worst = "the timed calls gave other bits than the verified one";
  }
}

}  // namespace attn::command
