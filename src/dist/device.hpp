// A rank's own call where its tensors are in memory of a GPU. K and V go from device to device
// where the group's engine carries them there, else through memory of the host, as sums do.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "attn/dist.hpp"
#include "dist/call.hpp"
#include "dist/plan_data.hpp"
#include "dist/row_tensor.hpp"

namespace attn::dist {

// The plan of the rank's part, as cpu::plan is for ranks of a CPU.
attn::Plan plan_on_device(const Problem& part, Phase phase, const PlanOptions& options,
                          const attn::Context& context);

// What such calls keep where ranks read each other's memory (peers.hpp).
std::shared_ptr<PeerMemory> make_peer_memory(Device device);

// The gathered K and V, on the device.
struct DeviceKeys {
  Tensor k{}, v{};
  std::shared_ptr<void> owner{};
};

// Copies to and from the device are put into the context's stream; what the host or another rank
// needs is there when a function returns.
class DeviceCall {
 public:
  DeviceCall(const PlanData& plan, const attn::Context& context)
      : plan_(plan), context_(context), device_(plan.options.local.device) {}

  // Sends the rank's K and V to those who see them, and gets what it sees.
  DeviceKeys gather(const Traffic& traffic, const Tensor& k, const Tensor& v) const;
  // Memory for partial sums of dK and dV of the gathered rows, in Traffic::sum_dtype.
  DeviceKeys partial_sums(const Traffic& traffic) const;
  // dk and dv, where given, <- the sums over all ranks, which the engine carries from GPU to GPU.
  void send_home(const Traffic& traffic, const DeviceKeys& partial, const Tensor& dk,
                 const Tensor& dv) const;
  // k and v, which have the same rows, <- host; a tensor that is not given is left out.
  void upload(const RowMemory& host, const Tensor& k, const Tensor& v) const;
  // A float tensor of any strides <- values, in row-major order.
  void upload(const std::vector<double>& values, const Tensor& to) const;
  // The numbers of a float tensor of any strides, in row-major order.
  std::vector<double> download(const Tensor& from) const;
  // Seed and offset of Inputs::rng_state.
  std::array<std::int64_t, 2> download_state(const Tensor& rng_state) const;

  void forward(const Inputs& inputs, const DeviceKeys& gathered, const Outputs& outputs) const;
  // gradients: dq is the caller's tensor; the others are float, row-major tensors of the host; dk
  // and dv may be on the device.
  void backward(const Inputs& inputs, const DeviceKeys& gathered, const Outputs& outputs,
                const OutputGradients& d_outputs, const Gradients& gradients) const;

 private:
  DeviceKeys gather_by_host(const Traffic& traffic, const Tensor& k, const Tensor& v) const;

  const PlanData& plan_;
  const attn::Context& context_;
  Device device_;
};

}  // namespace attn::dist
