// In place of device.cpp where the CUDA backend is left out (ATTN_CUDA=OFF): every call says so.
#include "attn/error.hpp"
#include "cuda/cuda.hpp"
#include "dist/device.hpp"
#include "dist/device_copy.hpp"
#include "dist/peers.hpp"

namespace attn::dist {

attn::Plan plan_on_device(const Problem& part, Phase phase, const PlanOptions& options,
                          const attn::Context& context) {
  return cuda::plan(part, phase, options, context);  // refuses
}
void let_devices_copy(const std::vector<Device>&) {
  throw Error(ErrorCode::unavailable,
              "devices are GPUs; accepted is in_process, as this library was built without CUDA "
              "(ATTN_CUDA=OFF)");
}
// No plan or group of a device is ever made.
std::shared_ptr<PeerMemory> make_peer_memory(Device) { return {}; }
PeerCall::PeerCall(const PlanData& plan, const Traffic& traffic, const attn::Context& context)
    : plan_(plan), traffic_(traffic), context_(context), memory_(*plan.work.memory) {}
void PeerCall::forward(const Inputs&, const Outputs&) const {}
void PeerCall::backward(const Inputs&, const Outputs&, const OutputGradients&,
                        const Gradients&) const {}
void copy_between_devices(void*, Device, const void*, std::size_t) {}
DeviceKeys DeviceCall::gather(const Traffic&, const Tensor&, const Tensor&) const { return {}; }
DeviceKeys DeviceCall::partial_sums(const Traffic&) const { return {}; }
void DeviceCall::send_home(const Traffic&, const DeviceKeys&, const Tensor&, const Tensor&) const {}
void DeviceCall::upload(const RowMemory&, const Tensor&, const Tensor&) const {}
void DeviceCall::upload(const std::vector<double>&, const Tensor&) const {}
std::vector<double> DeviceCall::download(const Tensor&) const { return {}; }
std::array<std::int64_t, 2> DeviceCall::download_state(const Tensor&) const { return {}; }
void DeviceCall::forward(const Inputs&, const DeviceKeys&, const Outputs&) const {}
void DeviceCall::backward(const Inputs&, const DeviceKeys&, const Outputs&, const OutputGradients&,
                          const Gradients&) const {}

}  // namespace attn::dist
