#include "verify/device_matmul.hpp"

#include <algorithm>

namespace attn::verify {
namespace {

cuda::DeviceBuffer upload_bytes(const std::vector<std::byte>& bytes, int device) {
  cuda::DeviceBuffer memory(device, std::max<std::size_t>(1, bytes.size()));
  if (!bytes.empty()) memory.upload(bytes.data(), bytes.size());
  return memory;
}

Tensor there(const Tensor& host, const cuda::DeviceBuffer& memory, Device device) {
  Tensor t = host;
  if (!t.given()) return t;
  t.data = memory.data();
  t.device = device;
  return t;
}

}  // namespace

DeviceMatmul::DeviceMatmul(MatmulData& data, const MatmulPlan& plan)
    : data_(data),
      a_(upload_bytes(data.bytes_a, plan.device.index)),
      b_(upload_bytes(data.bytes_b, plan.device.index)),
      c_(upload_bytes(data.bytes_c, plan.device.index)),
      bias_(upload_bytes(data.bytes_bias, plan.device.index)),
      scales_(upload_bytes(data.bytes_scales, plan.device.index)),
      mask_(upload_bytes(data.bytes_mask, plan.device.index)),
      workspace_(plan.device.index,
                 static_cast<std::size_t>(std::max<std::int64_t>(1, plan.workspace_bytes))) {
  inputs.a = there(data.inputs.a, a_, plan.device);
  inputs.b = there(data.inputs.b, b_, plan.device);
  inputs.bias = there(data.inputs.bias, bias_, plan.device);
  inputs.scale_a = there(data.inputs.scale_a, scales_, plan.device);
  inputs.scale_b = there(data.inputs.scale_b, scales_, plan.device);
  if (inputs.scale_b.given()) {
    inputs.scale_b.data = static_cast<float*>(scales_.data()) + 1;
  }
  inputs.block_mask = there(data.inputs.block_mask, mask_, plan.device);
  c = there(data.c, c_, plan.device);
}

void DeviceMatmul::call(const MatmulPlan& plan, Context context) const {
  if (plan.workspace_bytes > 0) {
    context.workspace = tensor(workspace_.data(), DType::u8, {plan.workspace_bytes}, plan.device);
  }
  matmul(plan, inputs, c, context);
}

void DeviceMatmul::download() const { c_.download(data_.bytes_c.data(), data_.bytes_c.size()); }

void matmul_on_device(MatmulData& data, const MatmulPlan& plan, const Context& context) {
  const DeviceMatmul device(data, plan);
  const cuda::Stream stream(plan.device.index);
  Context in_stream = context;
  in_stream.stream = stream.handle();
  device.call(plan, in_stream);
  stream.synchronize();
  device.download();
}

}  // namespace attn::verify
