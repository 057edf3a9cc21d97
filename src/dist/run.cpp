// dist::forward and dist::backward.
#include <fmt/format.h>

#include <array>
#include <exception>
#include <limits>
#include <utility>

#include "attn/error.hpp"
#include "core/tensor/element.hpp"
#include "cpu/cpu.hpp"
#include "dist/call.hpp"
#include "dist/device.hpp"
#include "dist/peers.hpp"

namespace attn::dist {
namespace {

const PlanData& with_group(const Plan& plan) {
  const PlanData& data = plan.data();
  if (data.group) return data;
  throw Error(ErrorCode::invalid_argument,
              "the plan was made for a number of ranks; accepted is one made for a group");
}

bool on_device(const PlanData& plan) { return plan.options.local.device.type == DeviceType::cuda; }

// Seed and offset of dropout.
std::array<std::int64_t, 2> state_of(const PlanData& plan, const Tensor& rng_state,
                                     const attn::Context& context) {
  if (on_device(plan)) return DeviceCall(plan, context).download_state(rng_state);
  const auto* const words = static_cast<const std::int64_t*>(rng_state.data);
  return {words[0], words[1]};
}

// What a call asks for, which must be the same on all ranks.
struct Asked {
  std::string_view name;
  std::string value;
};

// Tells the others what each is about to do, `check` having looked at this rank's arguments.
template <class Check>
void greet(const PlanData& plan, std::string_view call, const Inputs& inputs, const Asked& asked,
           const Context& context, const Check& check) {
  Greeting greeting(call);
  greeting.add("plan", plan.identity);
  greeting.add(asked.name, asked.value);
  try {
    check();
    std::string state;
    if (plan.problem.dropout.rng_state) {
      const auto words = state_of(plan, inputs.rng_state, context.local);
      state = fmt::format("{} {}", words[0], words[1]);
    }
    greeting.add("rng_state", state);
    greeting.add("scales", fmt::format("scale_k of rank {}, scale_v of rank {}",
                                       inputs.scale_k.rank, inputs.scale_v.rank));
  } catch (const Error& error) {
    greeting.refuse(error.code(), error.what());
  }
  agree(*plan.group, greeting, context.timeout);
}

// What goes wrong on this rank alone is told to the others, who wait for it.
template <class Work>
void together(const PlanData& plan, const Work& work) {
  Engine& engine = plan.group->engine();
  try {
    work();
  } catch (const std::exception& error) {
    engine.fail(fmt::format("rank {}: {}", engine.rank(), error.what()));
    throw;
  } catch (...) {
    engine.fail(fmt::format("rank {} failed", engine.rank()));
    throw;
  }
}

// Buffers that were given for planning alone are bound as well.
Inputs with_buffers(const PlanData& plan, const Inputs& inputs) {
  Inputs bound = inputs;
  for (const auto& given : plan.options.buffers) {
    bool is_bound = false;
    for (const auto& binding : inputs.buffers) is_bound |= binding.first == given.first;
    if (!is_bound) bound.buffers.push_back(given);
  }
  return bound;
}

// A gradient that is summed over all ranks: this rank's terms, and where the sum goes.
struct SumGradient {
  std::vector<double> terms;  // rounded once, when they are summed
  std::vector<float> floats;
  Tensor to;

  explicit SumGradient(const Tensor& result)
      : terms(static_cast<std::size_t>(result.size()), 0.0), to(result) {}
  // Of this rank's terms, on the host: a GPU gives them in float.
  Tensor tensor_of_terms(bool from_device) {
    Tensor t = to;
    t.device = {};
    t.dtype = from_device ? DType::f32 : DType::f64;
    floats.resize(from_device ? terms.size() : 0, 0.0f);
    t.data = from_device ? static_cast<void*>(floats.data()) : terms.data();
    std::int64_t stride = 1;
    for (std::int32_t d = to.rank; d-- > 0;) {
      t.strides[static_cast<std::size_t>(d)] = stride;
      stride *= to.shape[static_cast<std::size_t>(d)];
    }
    return t;
  }
  void take_floats() {
    if (!floats.empty()) terms.assign(floats.begin(), floats.end());
  }
  void store() const {
    for (std::size_t i = 0; i < terms.size(); ++i) {
      auto left = static_cast<std::int64_t>(i);
      std::int64_t offset = 0;
      for (std::int32_t d = to.rank; d-- > 0;) {
        const auto axis = static_cast<std::size_t>(d);
        offset += left % to.shape[axis] * to.strides[axis];
        left /= to.shape[axis];
      }
      static_cast<float*>(to.data)[offset] = static_cast<float>(terms[i]);
    }
  }
};

// Outputs::max_logit of a call: each rank finds that of its rows, and all take the largest.
class MaxLogitOfRanks {
 public:
  MaxLogitOfRanks(const PlanData& plan, const Tensor& to, const attn::Context& context)
      : to_(to), from_device_(on_device(plan)), device_(plan, context) {}

  std::string text() const { return to_.given() ? "asked" : ""; }
  // All are -inf, which is what a rank without rows adds.
  void clear() const {
    if (to_.given()) {
      store(std::vector<double>(heads(), -std::numeric_limits<double>::infinity()));
    }
  }
  void merge(const Traffic& traffic) const {
    if (!to_.given()) return;
    std::vector<double> values = from_device_ ? device_.download(to_) : std::vector<double>();
    for (std::size_t h = values.size(); h < heads(); ++h) values.push_back(element(h));
    traffic.largest(values);
    store(values);
  }

 private:
  std::size_t heads() const { return static_cast<std::size_t>(to_.shape[0]); }
  std::byte* address(std::size_t head) const {
    return static_cast<std::byte*>(to_.data) + static_cast<std::int64_t>(head) * to_.strides[0] *
                                                   static_cast<std::int64_t>(size_of(to_.dtype));
  }
  double element(std::size_t head) const { return core::load_element(address(head), to_.dtype); }
  void store(const std::vector<double>& values) const {
    if (from_device_) return device_.upload(values, to_);
    for (std::size_t h = 0; h < heads(); ++h) core::store_element(address(h), to_.dtype, values[h]);
  }

  Tensor to_;
  bool from_device_;
  DeviceCall device_;
};

// local_inputs with what was gathered in memory of the host.
Inputs host_inputs(const PlanData& plan, const Inputs& inputs, const RowMemory& gathered) {
  Inputs local = local_inputs(plan, inputs, gathered.k.tensor, gathered.v.tensor);
  const auto take = [](const RowTensor& rows, Tensor& scale) {
    if (!rows.tensor.given()) return;
    scale = rows.tensor;
    --scale.rank;  // the last dimension has one element
  };
  take(gathered.scale_k, local.scale_k);
  take(gathered.scale_v, local.scale_v);
  return local;
}

// O, LSE and the largest scores of a rank's rows, with traffic by messages.
void forward_by_messages(const PlanData& data, const Traffic& traffic, const Inputs& inputs,
                         const Outputs& outputs, const attn::Context& context) {
  if (on_device(data)) {
    const DeviceCall device(data, context);
    const DeviceKeys gathered = device.gather(traffic, inputs.k, inputs.v);
    if (data.work.forward) device.forward(inputs, gathered, outputs);
    return;
  }
  const RowMemory gathered = traffic.gather(inputs);
  if (!data.work.forward) return;
  cpu::forward(*data.work.forward, host_inputs(data, inputs, gathered), outputs, context);
}

// dk, dv <- sums, rounded.
void store_sums(const PlanData& plan, const Traffic& traffic, const RowMemory& sums,
                const Gradients& gradients, const attn::Context& context) {
  if (!on_device(plan)) {
    if (gradients.dk.given()) convert_rows(sums.k, gradients.dk);
    if (gradients.dv.given()) convert_rows(sums.v, gradients.dv);
    return;
  }
  const RowMemory rounded = traffic.memory(sums.k.rows, plan.problem.dtype);
  convert_rows(sums.k, rounded.k.tensor);
  convert_rows(sums.v, rounded.v.tensor);
  DeviceCall(plan, context).upload(rounded, gradients.dk, gradients.dv);
}

// dq, dk and dv of a rank, and its terms of the other gradients, with traffic by messages.
void backward_by_messages(const PlanData& data, const Traffic& traffic, const Inputs& inputs,
                          const Outputs& outputs, const OutputGradients& d_outputs,
                          const Gradients& gradients, const attn::Context& context) {
  const bool from_device = on_device(data);
  const DeviceCall device(data, context);
  DeviceKeys on_gpu;
  RowMemory gathered;
  if (from_device) {
    on_gpu = device.gather(traffic, inputs.k, inputs.v);
  } else {
    gathered = traffic.gather(inputs);
  }
  const bool of_keys = gradients.dk.given() || gradients.dv.given();
  const auto me = static_cast<std::size_t>(traffic.rank());
  if (from_device && of_keys && data.ranks <= kMostPeers &&
      data.group->engine().carries(data.options.local.device)) {
    const DeviceKeys sums = device.partial_sums(traffic);
    if (data.work.backward) {
      Gradients local = gradients;
      local.dk = sums.k;
      local.dv = sums.v;
      device.backward(inputs, on_gpu, outputs, d_outputs, local);
    }
    return device.send_home(traffic, sums, gradients.dk, gradients.dv);
  }
  const RowMemory partial =
      traffic.memory(of_keys ? data.gathered[me] : RowList{}, traffic.sum_dtype());
  if (data.work.backward) {
    Gradients local = gradients;
    local.dk = of_keys ? partial.k.tensor : Tensor{};
    local.dv = of_keys ? partial.v.tensor : Tensor{};
    if (from_device) {
      device.backward(inputs, on_gpu, outputs, d_outputs, local);
    } else {
      cpu::backward(*data.work.backward, host_inputs(data, inputs, gathered), outputs, d_outputs,
                    local, context);
    }
  }
  if (!of_keys) return;
  store_sums(data, traffic, traffic.send_home(partial), gradients, context);
}

Tensor i32(const std::vector<std::int32_t>& values) {
  return values.empty() ? Tensor{}
                        : tensor(values.data(), {static_cast<std::int64_t>(values.size())});
}

}  // namespace

Inputs local_inputs(const PlanData& plan, const Inputs& inputs, const Tensor& k, const Tensor& v) {
  Inputs local = inputs;
  local.k = k;
  local.v = v;
  local.cu_seqlens_q = i32(plan.work.part.cu_q);
  local.cu_seqlens_k = i32(plan.work.part.cu_k);
  local.seqused_q = i32(plan.work.part.used_q);
  local.seqused_k = i32(plan.work.part.used_k);
  return local;
}

void forward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
             const Context& context) {
  const PlanData& data = with_group(plan);
  const Inputs bound = with_buffers(data, inputs);
  const MaxLogitOfRanks max_logit(data, outputs.max_logit, context.local);
  greet(data, "forward", bound, {"max_logit", max_logit.text()}, context,
        [&] { check_forward(data, bound, outputs, context.local); });
  together(data, [&] {
    const Traffic traffic(data, context.timeout);
    max_logit.clear();
    if (data.work.memory) {
      PeerCall(data, traffic, context.local).forward(bound, outputs);
    } else {
      forward_by_messages(data, traffic, bound, outputs, context.local);
    }
    max_logit.merge(traffic);
  });
}

void backward(const Plan& plan, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              const Context& context) {
  const PlanData& data = with_group(plan);
  const Inputs bound = with_buffers(data, inputs);
  std::string asked =
      fmt::format("{}{}{}", gradients.dk.given() ? "dk " : "", gradients.dv.given() ? "dv " : "",
                  gradients.dsink.given() ? "dsink " : "");
  for (const auto& gradient : gradients.buffers) asked += gradient.first + " ";
  greet(data, "backward", bound, {"gradients", asked}, context,
        [&] { check_backward(data, bound, outputs, d_outputs, gradients, context.local); });
  together(data, [&] {
    const Traffic traffic(data, context.timeout);
    const bool from_device = on_device(data);
    std::vector<SumGradient> sums;
    Gradients local{.dq = gradients.dq, .dk = gradients.dk, .dv = gradients.dv};
    if (gradients.dsink.given()) {
      local.dsink = sums.emplace_back(gradients.dsink).tensor_of_terms(from_device);
    }
    for (const auto& [name, result] : gradients.buffers) {
      local.buffers.emplace_back(name, sums.emplace_back(result).tensor_of_terms(from_device));
    }
    if (data.work.memory) {
      PeerCall(data, traffic, context.local).backward(bound, outputs, d_outputs, local);
    } else {
      backward_by_messages(data, traffic, bound, outputs, d_outputs, local, context.local);
    }
    const DeviceCall device(data, context.local);
    for (SumGradient& sum : sums) {
      sum.take_floats();
      traffic.sum(sum.terms);
      from_device ? device.upload(sum.terms, sum.to) : sum.store();
    }
  });
}

}  // namespace attn::dist
