#include "dist/peer_memory.hpp"

#include <algorithm>

#include "dist/call.hpp"
#include "dist/device.hpp"

namespace attn::dist {

void* PeerMemory::take(std::size_t bytes) {
  if (buffers_ == buffer_.size()) buffer_.emplace_back();
  cuda::DeviceBuffer& buffer = buffer_[buffers_++];
  if (buffer.bytes() < bytes || buffer.data() == nullptr) {
    buffer = {};  // before the larger one
    buffer = cuda::DeviceBuffer(device_.index, std::max<std::size_t>(bytes, 1));
  }
  return buffer.data();
}

Tensor PeerMemory::take(DType dtype, std::vector<std::int64_t> shape) {
  Tensor t;
  t.dtype = dtype;
  t.device = device_;
  t.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    t.shape[d] = shape[d];
    t.strides[d] = stride;
    stride *= shape[d];
  }
  t.data = take(static_cast<std::size_t>(stride) * size_of(dtype));
  return t;
}

cuda::Event& PeerMemory::event() {
  if (events_ == event_.size()) event_.emplace_back(device_.index);
  return event_[events_++];
}

void* PeerMemory::record(void* stream) {
  cuda::Event& recorded = event();
  recorded.record(stream);
  return recorded.handle();
}

const Inputs& PeerMemory::tables(const PlanData& plan) {
  if (tables_) return *tables_;
  Inputs found = local_inputs(plan, {}, {}, {});
  const auto upload = [&](const Tensor& host) {
    Tensor t = host;
    t.device = device_;
    const std::size_t bytes = static_cast<std::size_t>(host.size()) * size_of(host.dtype);
    table_.emplace_back(device_.index, std::max<std::size_t>(bytes, 1));
    table_.back().upload(host.data, bytes);
    t.data = table_.back().data();
    return t;
  };
  for (Tensor* t : {&found.cu_seqlens_q, &found.cu_seqlens_k, &found.seqused_q, &found.seqused_k}) {
    if (t->given()) *t = upload(*t);
  }
  for (const auto& [name, host] : own_tables(plan.work.part.problem)) {
    found.buffers.emplace_back(name, upload(host));
  }
  tables_ = std::move(found);
  return *tables_;
}

std::shared_ptr<PeerMemory> make_peer_memory(Device device) {
  return std::make_shared<PeerMemory>(device);
}

}  // namespace attn::dist
