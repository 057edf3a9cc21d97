#include "dist/device.hpp"

#include <algorithm>
#include <cstddef>
#include <list>
#include <string_view>

#include "core/platform/platform.hpp"
#include "cuda/cuda.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/memory.hpp"
#include "dist/device_copy.hpp"
#include "dist/device_rows.hpp"

namespace attn::dist {
namespace {

// Rows of K and V on the device, one behind the other as in RowMemory.
struct DeviceRows {
  DeviceRows(const Traffic& traffic, const RowList& rows, DType dtype, Device device)
      : DeviceRows(traffic.memory({}, dtype), rows, device) {}

  RowTensor k{}, v{};
  std::size_t bytes = 0;
  cuda::DeviceBuffer memory{};

  void* data() const { return memory.data(); }

 private:
  // like: of no rows.
  DeviceRows(const RowMemory& like, const RowList& rows, Device device)
      : k{like.k.tensor, rows}, v{like.v.tensor, rows} {
    std::size_t ends[2] = {};
    for (int i = 0; i < 2; ++i) {
      Tensor& t = i == 0 ? k.tensor : v.tensor;
      t.shape[static_cast<std::size_t>(t.rank - 3)] = count(rows);
      std::int64_t stride = 1;
      for (std::int32_t d = t.rank; d-- > 0;) {
        t.strides[static_cast<std::size_t>(d)] = stride;
        stride *= t.shape[static_cast<std::size_t>(d)];
      }
      t.device = device;
      bytes += static_cast<std::size_t>(stride) * size_of(t.dtype);
      ends[i] = bytes;
    }
    memory = cuda::DeviceBuffer(device.index, std::max<std::size_t>(bytes, 1));
    k.tensor.data = memory.data();
    v.tensor.data = static_cast<std::byte*>(memory.data()) + ends[0];
  }
};

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
Inputs inputs_on_device(const PlanData& plan, const Inputs& inputs, const DeviceKeys& gathered,
                        Scratch& scratch) {
  Inputs local = local_inputs(plan, inputs, gathered.k, gathered.v);
  for (Tensor* t : {&local.cu_seqlens_q, &local.cu_seqlens_k, &local.seqused_q, &local.seqused_k}) {
    if (t->given()) *t = scratch.like(*t, true);
  }
  for (const auto& [name, host] : own_tables(plan.work.part.problem)) {
    local.buffers.emplace_back(name, scratch.like(host, true));
  }
  return local;
}

// Numbers of the host in the shape of a tensor, in row-major order.
Tensor row_major(const Tensor& shape, std::vector<float>& numbers) {
  Tensor t = shape;
  t.device = {};
  t.data = numbers.data();
  std::int64_t stride = 1;
  for (std::int32_t d = t.rank; d-- > 0;) {
    t.strides[static_cast<std::size_t>(d)] = stride;
    stride *= t.shape[static_cast<std::size_t>(d)];
  }
  return t;
}

}  // namespace

attn::Plan plan_on_device(const Problem& part, Phase phase, const PlanOptions& options,
                          const attn::Context& context) {
  attn::Plan plan = cuda::plan(part, phase, options, context);
  plan.device = options.device;
  plan.deterministic = options.deterministic;
  return plan;
}

DeviceKeys DeviceCall::gather_by_host(const Traffic& traffic, const Tensor& k,
                                      const Tensor& v) const {
  const Copies copies(device_, context_.stream);
  const auto me = static_cast<std::size_t>(traffic.rank());
  const DType dtype = plan_.problem.dtype;
  const RowMemory own = traffic.memory(plan_.keys[me], dtype);
  copy_tensor(copies, k, own.k.tensor);
  copy_tensor(copies, v, own.v.tensor);
  copies.wait();
  const RowMemory host = traffic.gather({.k = own.k.tensor, .v = own.v.tensor});
  const auto all = std::make_shared<DeviceRows>(traffic, plan_.gathered[me], dtype, device_);
  copies.copy(all->data(), host.data(), host.bytes());
  copies.wait();
  return {all->k.tensor, all->v.tensor, all};
}

DeviceKeys DeviceCall::gather(const Traffic& traffic, const Tensor& k, const Tensor& v) const {
  if (!plan_.group->engine().carries(device_)) return gather_by_host(traffic, k, v);
  const Copies copies(device_, context_.stream);
  const auto me = static_cast<std::size_t>(traffic.rank());
  const RowTensor own_k{k, plan_.keys[me]}, own_v{v, plan_.keys[me]};
  const auto rows_on_device = [&](const RowList& rows) {
    return std::make_shared<DeviceRows>(traffic, rows, plan_.problem.dtype, device_);
  };
  std::vector<std::shared_ptr<DeviceRows>> arrived;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < plan_.ranks; ++r) {
    if (r == traffic.rank()) continue;
    const RowList to_send = moved_rows(plan_, traffic.rank(), r);
    const RowList to_get = moved_rows(plan_, r, traffic.rank());
    if (!to_send.empty()) {
      const auto message = rows_on_device(to_send);
      copy_common(copies, own_k, message->k);
      copy_common(copies, own_v, message->v);
      sends.push_back({r, message->data(), message->bytes, message, device_});
    }
    if (!to_get.empty()) {
      arrived.push_back(rows_on_device(to_get));
      receives.push_back(
          {r, arrived.back()->data(), arrived.back()->bytes, arrived.back(), device_});
    }
  }
  const auto all = rows_on_device(plan_.gathered[me]);
  copy_common(copies, own_k, all->k);
  copy_common(copies, own_v, all->v);
  copies.wait();
  traffic.exchange(sends, receives);
  for (const auto& message : arrived) {
    copy_common(copies, message->k, all->k);
    copy_common(copies, message->v, all->v);
  }
  copies.wait();
  return {all->k.tensor, all->v.tensor, all};
}

DeviceKeys DeviceCall::partial_sums(const Traffic& traffic) const {
  const auto me = static_cast<std::size_t>(traffic.rank());
  const auto rows =
      std::make_shared<DeviceRows>(traffic, plan_.gathered[me], traffic.sum_dtype(), device_);
  return {rows->k.tensor, rows->v.tensor, rows};
}

void DeviceCall::send_home(const Traffic& traffic, const DeviceKeys& partial, const Tensor& dk,
                           const Tensor& dv) const {
  const Copies copies(device_, context_.stream);
  const auto me = static_cast<std::size_t>(traffic.rank());
  const RowTensor own_k{partial.k, plan_.gathered[me]}, own_v{partial.v, plan_.gathered[me]};
  const auto rows_on_device = [&](const RowList& rows) {
    return std::make_shared<DeviceRows>(traffic, rows, traffic.sum_dtype(), device_);
  };
  std::vector<std::shared_ptr<DeviceRows>> arrived;
  std::vector<RowTensor> terms_k(static_cast<std::size_t>(plan_.ranks)), terms_v = terms_k;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < plan_.ranks; ++r) {
    const auto from = static_cast<std::size_t>(r);
    if (from == me) {
      terms_k[from] = own_k;
      terms_v[from] = own_v;
      continue;
    }
    const RowList to_send = moved_rows(plan_, r, traffic.rank());  // what came from there
    const RowList to_get = moved_rows(plan_, traffic.rank(), r);
    if (!to_send.empty()) {
      const auto message = rows_on_device(to_send);
      copy_common(copies, own_k, message->k);
      copy_common(copies, own_v, message->v);
      sends.push_back({r, message->data(), message->bytes, message, device_});
    }
    if (!to_get.empty()) {
      const auto message = rows_on_device(to_get);
      receives.push_back({r, message->data(), message->bytes, message, device_});
      terms_k[from] = message->k;
      terms_v[from] = message->v;
      arrived.push_back(message);
    }
  }
  copies.wait();
  traffic.exchange(sends, receives);
  if (dk.given()) add_terms(terms_k, {dk, plan_.keys[me]}, context_);
  if (dv.given()) add_terms(terms_v, {dv, plan_.keys[me]}, context_);
  copies.wait();
}

void DeviceCall::upload(const RowMemory& host, const Tensor& k, const Tensor& v) const {
  const Copies copies(device_, context_.stream);
  if (k.given()) copy_tensor(copies, host.k.tensor, k);
  if (v.given()) copy_tensor(copies, host.v.tensor, v);
  copies.wait();
}

void DeviceCall::upload(const std::vector<double>& values, const Tensor& to) const {
  const Copies copies(device_, context_.stream);
  std::vector<float> rounded(values.begin(), values.end());
  copy_tensor(copies, row_major(to, rounded), to);
  copies.wait();
}

std::vector<double> DeviceCall::download(const Tensor& from) const {
  const Copies copies(device_, context_.stream);
  std::vector<float> values(static_cast<std::size_t>(from.size()));
  copy_tensor(copies, from, row_major(from, values));
  copies.wait();
  return {values.begin(), values.end()};
}

std::array<std::int64_t, 2> DeviceCall::download_state(const Tensor& rng_state) const {
  const Copies copies(device_, context_.stream);
  std::array<std::int64_t, 2> state{};
  copies.copy(state.data(), rng_state.data, sizeof(state));
  copies.wait();
  return state;
}

void DeviceCall::forward(const Inputs& inputs, const DeviceKeys& gathered,
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

void DeviceCall::backward(const Inputs& inputs, const DeviceKeys& gathered, const Outputs& outputs,
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
    if (!host.given() || host.device == device_) return host;
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

void copy_between_devices(void* to, Device device, const void* from, std::size_t bytes) {
  const Copies copies(device, nullptr);
  copies.copy(to, from, bytes);
  copies.wait();
}

void let_devices_copy(const std::vector<Device>& devices) {
  // Not among the functions that the library asks of every driver.
  using Enable = cuda::CUresult (*)(cuda::CUcontext, unsigned);
  const auto enable = reinterpret_cast<Enable>(
      core::find_symbol(core::open_library("libcuda.so.1"), "cuCtxEnablePeerAccess"));
  for (const Device& device : devices) {
    cuda::device_info(device.index);
    for (const Device& peer : devices) {
      if (peer == device || enable == nullptr) continue;
      const cuda::ContextGuard of_peer(peer.index);
      cuda::CUcontext context{};
      cuda::check(cuda::api().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
      const cuda::ContextGuard guard(device.index);
      static_cast<void>(enable(context, 0));  // it was before, or these two cannot
    }
  }
}

}  // namespace attn::dist
