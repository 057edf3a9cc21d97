#include "core/validate/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/cache_type.hpp"
#include "core/expr/build.hpp"
#include "core/validate/validate_parts.hpp"

namespace attn::core {
namespace {

using Tensors = std::pmr::vector<NamedTensor>;

// Tensors of a call without buffers; more make the list grow. A backward pass has most, and neither
// lists of keys nor a shared prefix.
constexpr std::size_t kTensors = 19;

void add_given(Tensors& tensors, const Label& name, const Tensor& tensor) {
  if (tensor.given()) tensors.push_back({name, tensor});
}

void add_inputs(Tensors& tensors, const Inputs& inputs,
                const std::pmr::vector<BoundBuffer>& buffers) {
  add_given(tensors, "q", inputs.q);
  add_given(tensors, "k", inputs.k);
  add_given(tensors, "v", inputs.v);
  add_given(tensors, "scale_q", inputs.scale_q);
  add_given(tensors, "scale_k", inputs.scale_k);
  add_given(tensors, "scale_v", inputs.scale_v);
  add_given(tensors, "cu_seqlens_q", inputs.cu_seqlens_q);
  add_given(tensors, "cu_seqlens_k", inputs.cu_seqlens_k);
  add_given(tensors, "seqused_q", inputs.seqused_q);
  add_given(tensors, "seqused_k", inputs.seqused_k);
  add_given(tensors, "page_table", inputs.page_table);
  add_given(tensors, "prefix_k", inputs.prefix_k);
  add_given(tensors, "prefix_v", inputs.prefix_v);
  add_given(tensors, "prefix_page_table", inputs.prefix_page_table);
  add_given(tensors, "key_list", inputs.key_list);
  add_given(tensors, "sink", inputs.sink);
  add_given(tensors, "rng_state", inputs.rng_state);
  for (const BoundBuffer& buffer : buffers) {
    add_given(tensors, {"buffer", buffer.name}, buffer.tensor);
  }
}

// The first `written` tensors are outputs, the others inputs.
void check_disjoint(const ArgumentCheck& check, std::span<const NamedTensor> tensors,
                    std::size_t written) {
  check.disjoint(tensors.first(written), tensors.subspan(written));
}

// A line of the GPU's cache, two of the CPU's, so that parts of a workspace do not share one.
constexpr std::uintptr_t kWorkspaceAlignment = 128;

// O, dO: as Q with head_dim_v.
void check_like_o(const ArgumentCheck& check, const Problem& p, const Inputs& inputs,
                  const Label& name, const Tensor& t) {
  check.tensor(name, t, type_of_o(p), shape_like_q(p, inputs.q.shape[0], p.head_dim_v));
  check.contiguous_rows(name, t);
}

void check_like_lse(const ArgumentCheck& check, const Problem& p, const Inputs& inputs,
                    const Label& name, const Tensor& t) {
  const DType dtype = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (p.layout_q == Layout::packed) {
    check.tensor(name, t, dtype, {p.heads_q, inputs.q.shape[0]});
  } else {
    check.tensor(name, t, dtype, {p.batch, p.heads_q, p.seqlen_q});
  }
}

void check_max_logit(const ArgumentCheck& check, const Problem& p, const Tensor& t) {
  check.tensor("max_logit", t, p.dtype == DType::f64 ? DType::f64 : DType::f32, {p.heads_q});
}

// Appends the gradients to `outputs`.
void check_gradients(const ArgumentCheck& check, const Problem& p, const Inputs& inputs,
                     const Gradients& gradients, const std::pmr::vector<BoundBuffer>& buffers,
                     Tensors& outputs) {
  const auto add = [&](const Label& name, const Tensor& t, DType dtype, const Shape& shape,
                       bool rows) {
    if (!t.given()) return;
    check.tensor(name, t, dtype, shape);
    if (rows) check.contiguous_rows(name, t);
    outputs.push_back({name, t});
  };
  add("dq", gradients.dq, p.dtype, shape_like_q(p, inputs.q.shape[0], p.head_dim), true);
  add("dk", gradients.dk, p.dtype, shape_like_k(p, inputs.k.shape[0], p.head_dim), true);
  add("dv", gradients.dv, p.dtype, shape_like_k(p, inputs.k.shape[0], p.head_dim_v), true);
  check_sum_gradients(check, p, gradients, buffers, outputs);
}

}  // namespace

void check_sum_gradients(const ArgumentCheck& check, const Problem& p, const Gradients& gradients,
                         const std::pmr::vector<BoundBuffer>& buffers, Tensors& outputs) {
  const auto add = [&](const Label& name, const Tensor& t, const Shape& shape) {
    check.tensor(name, t, DType::f32, shape);
    outputs.push_back({name, t});
  };
  if (p.sink) {
    if (gradients.dsink.given()) add("dsink", gradients.dsink, {p.heads_q});
  } else {
    check.not_given("dsink", gradients.dsink, "problem.sink is false");
  }
  std::pmr::vector<const attn::expr::Buffer*> score_buffers(outputs.get_allocator());
  if (!p.score.empty() && !gradients.buffers.empty()) {
    attn::expr::collect_buffers(p.score, score_buffers);
  }
  for (const auto& gradient : gradients.buffers) {
    const std::string& name = gradient.first;
    const Tensor& t = gradient.second;
    const Label label("gradient of buffer", name);
    const auto buffer = std::find_if(buffers.begin(), buffers.end(),
                                     [&](const BoundBuffer& other) { return other.name == name; });
    const bool of_score = std::any_of(score_buffers.begin(), score_buffers.end(),
                                      [&](const auto* other) { return other->name() == name; });
    if (!of_score || buffer == buffers.end() || !is_floating(buffer->tensor.dtype) ||
        buffer->tensor.rank == 0) {
      check.refuse(
          to_string(label) +
          " is asked for; accepted are buffers of the score that hold f32, bf16 or f16 and "
          "are no scalars");
    }
    if (std::any_of(outputs.begin(), outputs.end(),
                    [&](const NamedTensor& output) { return output.name.name == name; })) {
      check.refuse(to_string(label) + " is asked for twice; accepted is each name once");
    }
    const Tensor& source = buffer->tensor;
    check.view(label, t);
    if (t.given()) add(label, t, Shape(source));
  }
}

Device device_of(const Inputs& inputs) {
  // A CPU has no ordinals.
  return inputs.q.device.type == DeviceType::cuda ? inputs.q.device : Device{};
}

std::pmr::vector<NamedTensor> validate_forward(const Problem& problem, const Inputs& inputs,
                                               const Outputs& outputs, Device device,
                                               std::pmr::memory_resource& memory) {
  validate_problem(problem);
  const ArgumentCheck check(&problem, device);
  const auto buffers = check_inputs(check, problem, inputs, memory);
  check_like_o(check, problem, inputs, "o", outputs.o);
  if (outputs.lse.given()) check_like_lse(check, problem, inputs, "lse", outputs.lse);
  if (outputs.max_logit.given()) check_max_logit(check, problem, outputs.max_logit);
  Tensors tensors(&memory);
  tensors.reserve(kTensors);
  add_given(tensors, "o", outputs.o);
  add_given(tensors, "lse", outputs.lse);
  add_given(tensors, "max_logit", outputs.max_logit);
  const std::size_t written = tensors.size();
  add_inputs(tensors, inputs, buffers);
  check_disjoint(check, tensors, written);
  return tensors;
}

std::pmr::vector<NamedTensor> validate_backward(const Problem& problem, const Inputs& inputs,
                                                const Outputs& outputs,
                                                const OutputGradients& d_outputs,
                                                const Gradients& gradients, Device device,
                                                std::pmr::memory_resource& memory) {
  validate_problem(problem);
  const ArgumentCheck check(&problem, device);
  refuse_backward(problem);
  const auto buffers = check_inputs(check, problem, inputs, memory);
  check_like_o(check, problem, inputs, "o", outputs.o);
  check_like_lse(check, problem, inputs, "lse", outputs.lse);
  check_like_o(check, problem, inputs, "d_o", d_outputs.o);
  if (d_outputs.lse.given()) check_like_lse(check, problem, inputs, "d_lse", d_outputs.lse);
  Tensors tensors(&memory);
  tensors.reserve(kTensors);
  check_gradients(check, problem, inputs, gradients, buffers, tensors);
  const std::size_t written = tensors.size();
  add_inputs(tensors, inputs, buffers);
  add_given(tensors, "o", outputs.o);
  add_given(tensors, "lse", outputs.lse);
  add_given(tensors, "d_o", d_outputs.o);
  add_given(tensors, "d_lse", d_outputs.lse);
  check_disjoint(check, tensors, written);
  return tensors;
}

void validate_workspace(const Problem& problem, const Tensor& workspace, std::int64_t bytes,
                        std::span<const NamedTensor> tensors, Device device) {
  if (bytes == 0) return;
  const ArgumentCheck check(&problem, device);
  if (!workspace.given()) {
    check.refuse(
        fmt::format("workspace of the context is not given; accepted is u8 of at least {} "
                    "bytes, as the plan says, on {}",
                    bytes, to_string(device)));
  }
  check.tensor("workspace", workspace, DType::u8, {kAnySize});
  check.contiguous("workspace", workspace);
  if (workspace.size() < bytes) {
    check.refuse(fmt::format("workspace has {} bytes; accepted are at least {}, as the plan says",
                             workspace.size(), bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    check.refuse(fmt::format("workspace is at address {}; accepted are multiples of {} bytes",
                             fmt::ptr(workspace.data), kWorkspaceAlignment));
  }
  const NamedTensor written{"workspace", workspace};
  check.disjoint({&written, 1}, tensors);
}

}  // namespace attn::core
