#include "verify/device_data.hpp"

#include <algorithm>
#include <cstdint>

#include "attn/error.hpp"

namespace attn::verify {
namespace {

// Before and after the workspace.
constexpr std::size_t kGuard = 1024;

const std::byte* address(const Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.data);
}

bool holds(const Storage& storage, const Tensor& tensor) {
  return address(tensor) >= storage.bytes() && address(tensor) < storage.bytes() + storage.size();
}

// Elements from the first to the last one of a tensor with strides of 0 or more.
std::int64_t extent(const Tensor& tensor) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(tensor.rank); ++d) {
    last += (tensor.shape[d] - 1) * tensor.strides[d];
  }
  return last + 1;
}

}  // namespace

Tensor upload(const Tensor& host, Device device, std::list<cuda::DeviceBuffer>& memory) {
  Tensor copy = host;
  copy.device = device;
  copy.data = nullptr;
  if (host.size() == 0) return copy;
  const std::size_t bytes = static_cast<std::size_t>(extent(host)) * size_of(host.dtype);
  memory.emplace_back(device.index, bytes);
  memory.back().upload(host.data, bytes);
  copy.data = memory.back().data();
  return copy;
}

DeviceData::DeviceData(const CaseData& data, Phase phase, Device device) : device_(device) {
  for (const bool read : {true, false}) {
    for (const Storage* storage : data.storages(phase, read)) {
      Copy& copy =
          (read ? inputs_ : outputs_)
              .emplace_back(Copy{storage, cuda::DeviceBuffer(device.index, storage->size())});
      for (const auto& [begin, end] : storage->contents()) {
        copy.memory.upload(storage->bytes() + begin, end - begin, begin);
      }
    }
  }
  upload_inputs();
  upload_outputs();
  const Inputs& host = data.inputs;
  inputs = {.q = here(host.q),
            .k = here(host.k),
            .v = here(host.v),
            .scale_q = here(host.scale_q),
            .scale_k = here(host.scale_k),
            .scale_v = here(host.scale_v),
            .cu_seqlens_q = here(host.cu_seqlens_q),
            .cu_seqlens_k = here(host.cu_seqlens_k),
            .seqused_q = here(host.seqused_q),
            .seqused_k = here(host.seqused_k),
            .page_table = here(host.page_table),
            .prefix_k = here(host.prefix_k),
            .prefix_v = here(host.prefix_v),
            .prefix_page_table = here(host.prefix_page_table),
            .key_list = here(host.key_list),
            .sink = here(host.sink),
            .rng_state = here(host.rng_state),
            .buffers = {}};
  outputs = {.o = here(data.outputs.o),
             .lse = here(data.outputs.lse),
             .max_logit = here(data.outputs.max_logit)};
  if (phase == Phase::backward) {
    d_outputs = {here(data.d_o), here(data.d_lse)};
    const Gradients& all = data.gradients;
    gradients = {.dq = here(all.dq),
                 .dk = here(all.dk),
                 .dv = here(all.dv),
                 .dsink = here(all.dsink),
                 .buffers = {}};
    for (const auto& [name, tensor] : all.buffers) {
      gradients.buffers.emplace_back(name, here(tensor));
    }
  }
  for (const auto& [name, tensor] : host.buffers) {
    inputs.buffers.emplace_back(name, tensor.given() ? here(tensor) : tensor);
  }
  for (const expr::Expr* e : {&data.problem.mask, &data.problem.score}) {
    for (const auto& buffer : expr::buffers(*e)) {
      const auto is_bound = [&](const auto& bound) { return bound.first == buffer->name(); };
      if (!buffer->tensor().given()) continue;  // a scalar stays where it is
      if (std::none_of(inputs.buffers.begin(), inputs.buffers.end(), is_bound)) {
        inputs.buffers.emplace_back(buffer->name(),
                                    verify::upload(buffer->tensor(), device, others_));
      }
    }
  }
}

Tensor DeviceData::here(const Tensor& host) const {
  if (!host.given()) return {};
  for (const std::list<Copy>* copies : {&inputs_, &outputs_}) {
    for (const Copy& copy : *copies) {
      if (!holds(*copy.storage, host)) continue;
      Tensor tensor = host;
      tensor.device = device_;
      tensor.data =
          static_cast<std::byte*>(copy.memory.data()) + (address(host) - copy.storage->bytes());
      return tensor;
    }
  }
  throw Error(ErrorCode::internal, "a tensor of the case lies in none of its storages");
}

void DeviceData::upload(std::list<Copy>& copies) {
  for (Copy& copy : copies) {
    for (const auto& [begin, end] : copy.storage->contents()) {
      copy.memory.upload(copy.storage->bytes() + begin, end - begin, begin);
    }
  }
}

void DeviceData::download() const {
  for (const std::list<Copy>* copies : {&inputs_, &outputs_}) {
    for (const Copy& copy : *copies) {
      for (const auto& [begin, end] : copy.storage->contents()) {
        copy.memory.download(copy.storage->bytes() + begin, end - begin, begin);
      }
    }
  }
}

DeviceWorkspace::DeviceWorkspace(const Plan& plan) {
  if (plan.workspace_bytes == 0) return;
  const auto bytes = static_cast<std::size_t>(plan.workspace_bytes);
  memory_ = cuda::DeviceBuffer(plan.device.index, bytes + 2 * kGuard);
  memory_.fill(static_cast<unsigned char>(kPoison));
  cuda::synchronize(plan.device.index);
  tensor_ = attn::tensor(static_cast<void*>(static_cast<std::byte*>(memory_.data()) + kGuard),
                         DType::u8, {plan.workspace_bytes}, plan.device);
}

bool DeviceWorkspace::overrun() const {
  if (!tensor_.given()) return false;
  std::vector<std::byte> guards(2 * kGuard);
  memory_.download(guards.data(), kGuard);
  memory_.download(guards.data() + kGuard, kGuard, memory_.bytes() - kGuard);
  return std::any_of(guards.begin(), guards.end(), [](std::byte b) { return b != kPoison; });
}

std::vector<std::byte> DeviceWorkspace::download() const {
  if (!tensor_.given()) return {};
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor_.shape[0]));
  memory_.download(bytes.data(), bytes.size(), kGuard);
  return bytes;
}

namespace {

// Plans a phase of `on`, calls run(plan, context) in a stream of its own, and copies everything
// back.
template <class Run>
void run_on_device(CaseData& data, DeviceData& on, Phase phase, const PlanOptions& options,
                   const Context& context, Run run) {
  const Plan plan = make_plan(complete(data.problem, on.inputs), phase, options, context);
  const DeviceWorkspace workspace(plan);
  const cuda::Stream stream(options.device.index);
  Context in_stream = context;
  in_stream.stream = stream.handle();
  in_stream.workspace = workspace.tensor();
  run(plan, in_stream);
  stream.synchronize();
  on.download();
  if (workspace.overrun()) {
    throw Error(ErrorCode::internal, "memory around the workspace was written");
  }
}

}  // namespace

void forward_on_device(CaseData& data, const PlanOptions& options, const Context& context,
                       bool with_lse) {
  data.poison();
  DeviceData on(data, Phase::forward, options.device);
  if (!with_lse) on.outputs.lse = {};
  run_on_device(data, on, Phase::forward, options, context,
                [&](const Plan& plan, const Context& in_stream) {
                  forward(plan, on.inputs, on.outputs, in_stream);
                });
}

void backward_on_device(CaseData& data, const PlanOptions& options, const Context& context) {
  DeviceData on(data, Phase::backward, options.device);
  run_on_device(data, on, Phase::backward, options, context,
                [&](const Plan& plan, const Context& in_stream) {
                  backward(plan, on.inputs, on.outputs, on.d_outputs, on.gradients, in_stream);
                });
}

}  // namespace attn::verify
