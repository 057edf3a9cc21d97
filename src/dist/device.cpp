#include "dist/device.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <list>
#include <string_view>

#include "cuda/cuda.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/memory.hpp"

namespace attn::dist {
namespace {

// A stream's copies between host and device; with unified addressing the driver sees by the address
// which side is which.
class Copies {
 public:
  Copies(Device device, void* stream)
      : guard_(device.index), stream_(static_cast<cuda::CUstream>(stream)) {}
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    cuda::check(
        cuda::api().cuMemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(to),
                                  reinterpret_cast<cuda::CUdeviceptr>(from), bytes, stream_),
        "a copy between ranks");
  }
  void wait() const {
    cuda::check(cuda::api().cuStreamSynchronize(stream_), "waiting for a rank's stream");
  }

 private:
  cuda::ContextGuard guard_;
  cuda::CUstream stream_;
};

// Calls visit(offset in t, offset in a row-major tensor of its shape, elements) for the longest
// runs that are contiguous in both.
template <class Visit>
void for_runs(const Tensor& t, const Visit& visit) {
  std::int64_t run = 1;
  std::int32_t axes = t.rank;  // outside of a run
  while (axes > 0) {
    const auto d = static_cast<std::size_t>(axes - 1);
    if (t.shape[d] != 1 && t.strides[d] != run) break;
    run *= t.shape[d];
    --axes;
  }
  if (t.size() == 0) return;
  for (std::int64_t i = 0; i < t.size() / run; ++i) {
    std::int64_t left = i, offset = 0;
    for (std::int32_t d = axes; d-- > 0;) {
      const auto axis = static_cast<std::size_t>(d);
      offset += left % t.shape[axis] * t.strides[axis];
      left /= t.shape[axis];
    }
    visit(offset, i * run, run);
  }
}

std::byte* at(const Tensor& t, std::int64_t offset) {
  return static_cast<std::byte*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
}

void copy_tensor(const Copies& copies, const Tensor& strided, const Tensor& row_major,
                 bool to_row_major) {
  for_runs(strided, [&](std::int64_t there, std::int64_t here, std::int64_t elements) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(strided.dtype);
    std::byte* const a = at(strided, there);
    std::byte* const b = at(row_major, here);
    to_row_major ? copies.copy(b, a, bytes) : copies.copy(a, b, bytes);
  });
}

// Memory of the device for the time of one call.
class Scratch {
 public:
  Scratch(const Copies& copies, Device device) : copies_(copies), device_(device) {}
  // A tensor like the row-major one of the host, with what that holds where `filled`.
  Tensor like(const Tensor& host, bool filled) {
    Tensor t = host;
    t.device = device_;
    const std::size_t bytes = static_cast<std::size_t>(host.size()) * size_of(host.dtype);
    memory_.emplace_back(device_.index, std::max<std::size_t>(bytes, 1));
    t.data = memory_.back().data();
    if (filled) copies_.copy(t.data, host.data, bytes);
    return t;
  }
  Tensor bytes(std::int64_t count) {
    if (count == 0) return {};
    memory_.emplace_back(device_.index, static_cast<std::size_t>(count));
    return tensor(memory_.back().data(), DType::u8, {count}, device_);
  }

 private:
  const Copies& copies_;
  Device device_;
  std::list<cuda::DeviceBuffer> memory_;
};

// Inputs of the rank's call, with lengths and tables of rewritten expressions on the device.
Inputs inputs_on_device(const PlanData& plan, const Inputs& inputs, const RowMemory& gathered,
                        Scratch& scratch) {
  Inputs local = local_inputs(plan, inputs, gathered);
  local.k = scratch.like(gathered.k.tensor, true);
  local.v = scratch.like(gathered.v.tensor, true);
  for (Tensor* t : {&local.cu_seqlens_q, &local.cu_seqlens_k, &local.seqused_q, &local.seqused_k}) {
    if (t->given()) *t = scratch.like(*t, true);
  }
  for (const expr::Expr* e : {&plan.work.part.problem.mask, &plan.work.part.problem.score}) {
    if (e->empty()) continue;
    for (const auto& buffer : expr::buffers(*e)) {
      if (!buffer->name().starts_with(kOwnBuffers)) continue;
      if (std::any_of(local.buffers.begin(), local.buffers.end(),
                      [&](const auto& bound) { return bound.first == buffer->name(); })) {
        continue;
      }
      local.buffers.emplace_back(buffer->name(), scratch.like(buffer->tensor(), true));
    }
  }
  return local;
}

}  // namespace

attn::Plan plan_on_device(const Problem& part, Phase phase, const PlanOptions& options,
                          const attn::Context& context) {
  attn::Plan plan = cuda::plan(part, phase, options, context);
  plan.device = options.device;
  plan.deterministic = options.deterministic;
  return plan;
}

void DeviceCall::download(const Tensor& k, const Tensor& v, const RowMemory& host) const {
  const Copies copies(device_, context_.stream);
  copy_tensor(copies, k, host.k.tensor, true);
  copy_tensor(copies, v, host.v.tensor, true);
  copies.wait();
}

void DeviceCall::upload(const RowMemory& host, const Tensor& k, const Tensor& v) const {
  const Copies copies(device_, context_.stream);
  if (k.given()) copy_tensor(copies, k, host.k.tensor, false);
  if (v.given()) copy_tensor(copies, v, host.v.tensor, false);
  copies.wait();
}

void DeviceCall::upload(const std::vector<double>& values, const Tensor& to) const {
  const Copies copies(device_, context_.stream);
  std::vector<float> rounded(values.begin(), values.end());
  Tensor row_major = to;
  row_major.data = rounded.data();
  copy_tensor(copies, to, row_major, false);
  copies.wait();
}

void DeviceCall::forward(const Inputs& inputs, const RowMemory& gathered,
                         const Outputs& outputs) const {
  const Copies copies(device_, context_.stream);
  Scratch scratch(copies, device_);
  const attn::Plan& plan = *plan_.work.forward;
  const Inputs local = inputs_on_device(plan_, inputs, gathered, scratch);
  attn::Context context = context_;
  context.workspace = scratch.bytes(plan.workspace_bytes);
  cuda::forward(plan, local, outputs, context);
  copies.wait();
}

void DeviceCall::backward(const Inputs& inputs, const RowMemory& gathered, const Outputs& outputs,
                          const OutputGradients& d_outputs, const Gradients& gradients) const {
  const Copies copies(device_, context_.stream);
  Scratch scratch(copies, device_);
  const attn::Plan& plan = *plan_.work.backward;
  const Inputs local = inputs_on_device(plan_, inputs, gathered, scratch);
  attn::Context context = context_;
  context.workspace = scratch.bytes(plan.workspace_bytes);
  Gradients here;
  here.dq = gradients.dq;
  struct Pair {
    Tensor host, device;
  };
  std::vector<Pair> results;
  const auto result = [&](const Tensor& host) {
    if (!host.given()) return Tensor{};
    results.push_back({host, scratch.like(host, false)});
    return results.back().device;
  };
  here.dk = result(gradients.dk);
  here.dv = result(gradients.dv);
  here.dsink = result(gradients.dsink);
  for (const auto& [name, host] : gradients.buffers) here.buffers.emplace_back(name, result(host));
  cuda::backward(plan, local, outputs, d_outputs, here, context);
  for (const Pair& pair : results) {
    copies.copy(pair.host.data, pair.device.data,
                static_cast<std::size_t>(pair.host.size()) * size_of(pair.host.dtype));
  }
  copies.wait();
}

}  // namespace attn::dist
