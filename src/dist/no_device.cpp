// In place of device.cpp where the CUDA backend is left out (ATTN_CUDA=OFF): every call says so.
#include "cuda/cuda.hpp"
#include "dist/device.hpp"

namespace attn::dist {

attn::Plan plan_on_device(const Problem& part, Phase phase, const PlanOptions& options,
                          const attn::Context& context) {
  return cuda::plan(part, phase, options, context);  // refuses
}
// No plan of a device is ever made.
void DeviceCall::download(const Tensor&, const Tensor&, const RowMemory&) const {}
void DeviceCall::upload(const RowMemory&, const Tensor&, const Tensor&) const {}
void DeviceCall::upload(const std::vector<double>&, const Tensor&) const {}
void DeviceCall::forward(const Inputs&, const RowMemory&, const Outputs&) const {}
void DeviceCall::backward(const Inputs&, const RowMemory&, const Outputs&, const OutputGradients&,
                          const Gradients&) const {}

}  // namespace attn::dist
