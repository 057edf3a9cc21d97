// In place of what `attn` does on a GPU and over several ranks, in the program of `make demo`
// (ATTN_DEMO), which runs on the CPU and is built without them. It refuses --device, so that
// nothing else here is ever called.
#include "attn/dist.hpp"
#include "attn/error.hpp"
#include "command/cuda_timing.hpp"
#include "command/run_device.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/memory.hpp"
#include "verify/device_data.hpp"
#include "verify/ranks.hpp"

namespace attn {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::unavailable,
              "--device is a GPU; accepted is cpu, as attn_demo is built without CUDA "
              "(make builds build/attn, which has it)");
}

}  // namespace

namespace cuda {
const DeviceInfo& device_info(int) { refuse(); }
const Api& api() { refuse(); }
std::string version_text(int) { refuse(); }
DeviceBuffer::~DeviceBuffer() { static_cast<void>(pointer_); }
Stream::Stream(int) { refuse(); }
Stream::~Stream() { static_cast<void>(stream_); }
}  // namespace cuda

namespace dist {
std::string_view name(Deal) noexcept { return {}; }
}  // namespace dist

namespace verify {
DeviceWorkspace::DeviceWorkspace(const Plan&) { refuse(); }
void forward_on_device(CaseData&, const PlanOptions&, const Context&, bool) { refuse(); }
void backward_on_device(CaseData&, const PlanOptions&, const Context&) { refuse(); }
void forward_on_ranks(CaseData&, const RankOptions&, const PlanOptions&, const Context&, bool) {
  refuse();
}
void backward_on_ranks(CaseData&, const RankOptions&, const PlanOptions&, const Context&) {
  refuse();
}
}  // namespace verify

namespace command {
OnDevice::OnDevice(const RunProblem&, const Outputs&, const OutputGradients&, const Gradients&,
                   const Plan& plan, Context&)
    : plan_(plan), stream_(0), workspace_(plan) {}
void OnDevice::run(const Context&) const { refuse(); }
void OnDevice::download() const { refuse(); }
void measure_on_gpu(BenchRow&, verify::CaseData&, const Context&, const TimingRule&, Peaks&) {
  refuse();
}
}  // namespace command

}  // namespace attn
