#include "core/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "core/validate_parts.hpp"

namespace attn::core {
namespace {

std::vector<NamedTensor> input_tensors(const Inputs& inputs,
                                       const std::vector<BoundBuffer>& buffers) {
  std::vector<NamedTensor> tensors{{"q", inputs.q},
                                   {"k", inputs.k},
                                   {"v", inputs.v},
                                   {"cu_seqlens_q", inputs.cu_seqlens_q},
                                   {"cu_seqlens_k", inputs.cu_seqlens_k},
                                   {"seqused_q", inputs.seqused_q},
                                   {"seqused_k", inputs.seqused_k},
                                   {"page_table", inputs.page_table},
                                   {"sink", inputs.sink}};
  for (const BoundBuffer& buffer : buffers) {
    tensors.push_back({fmt::format("buffer '{}'", buffer.name), buffer.tensor});
  }
  return tensors;
}

// Of both lists.
std::vector<NamedTensor> given(std::vector<NamedTensor> written, std::vector<NamedTensor> read) {
  std::vector<NamedTensor> tensors = std::move(written);
  std::move(read.begin(), read.end(), std::back_inserter(tensors));
  std::erase_if(tensors, [](const NamedTensor& named) { return !named.tensor.given(); });
  return tensors;
}

// A line of the GPU's cache, so that parts of a workspace do not share one.
constexpr std::uintptr_t kWorkspaceAlignment = 128;

// O, dO: as Q with head_dim_v.
void check_like_o(const ArgumentCheck& check, const Problem& p, const Inputs& inputs,
                  std::string_view name, const Tensor& t) {
  check.tensor(name, t, p.dtype, shape_like_q(p, inputs.q.shape[0], p.head_dim_v));
  check.contiguous_rows(name, t);
}

void check_lse(const ArgumentCheck& check, const Problem& p, const Inputs& inputs,
               const Tensor& lse) {
  const DType dtype = p.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (p.layout_q == Layout::packed) {
    check.tensor("lse", lse, dtype, {p.heads_q, inputs.q.shape[0]});
  } else {
    check.tensor("lse", lse, dtype, {p.batch, p.heads_q, p.seqlen_q});
  }
}

// Returns the gradients as named outputs.
std::vector<NamedTensor> check_gradients(const ArgumentCheck& check, const Problem& p,
                                         const Inputs& inputs, const Gradients& gradients,
                                         const std::vector<BoundBuffer>& buffers) {
  std::vector<NamedTensor> outputs;
  const auto add = [&](std::string name, const Tensor& t, DType dtype,
                       const std::vector<std::int64_t>& shape, bool rows) {
    if (!t.given()) return;
    check.tensor(name, t, dtype, shape);
    if (rows) check.contiguous_rows(name, t);
    outputs.push_back({std::move(name), t});
  };
  add("dq", gradients.dq, p.dtype, shape_like_q(p, inputs.q.shape[0], p.head_dim), true);
  add("dk", gradients.dk, p.dtype, shape_like_k(p, inputs.k.shape[0], p.head_dim), true);
  add("dv", gradients.dv, p.dtype, shape_like_k(p, inputs.k.shape[0], p.head_dim_v), true);
  if (p.sink) {
    add("dsink", gradients.dsink, DType::f32, {p.heads_q}, false);
  } else {
    check.not_given("dsink", gradients.dsink, "problem.sink is false");
  }
  std::vector<std::string> score_buffers;
  if (!p.score.empty()) {
    for (const auto& buffer : attn::expr::buffers(p.score)) score_buffers.push_back(buffer->name());
  }
  for (const auto& gradient : gradients.buffers) {
    const std::string& name = gradient.first;
    const Tensor& t = gradient.second;
    const std::string label = fmt::format("gradient of buffer '{}'", name);
    const auto same_name = [&](const auto& other) { return other.name == name; };
    const auto buffer = std::find_if(buffers.begin(), buffers.end(), same_name);
    if (std::find(score_buffers.begin(), score_buffers.end(), name) == score_buffers.end() ||
        buffer == buffers.end() || !is_floating(buffer->tensor.dtype)) {
      check.refuse(label +
                   " is asked for; accepted are buffers of the score that hold f32, bf16 or f16");
    }
    if (std::any_of(outputs.begin(), outputs.end(),
                    [&](const NamedTensor& output) { return output.name == label; })) {
      check.refuse(label + " is asked for twice; accepted is each name once");
    }
    const Tensor& source = buffer->tensor;
    check.view(label, t);
    add(label, t, DType::f32, {source.shape.begin(), source.shape.begin() + source.rank}, false);
  }
  return outputs;
}

}  // namespace

Device device_of(const Inputs& inputs) {
  // A CPU has no ordinals.
  return inputs.q.device.type == DeviceType::cuda ? inputs.q.device : Device{};
}

std::vector<NamedTensor> validate_forward(const Problem& problem, const Inputs& inputs,
                                          const Outputs& outputs, Device device) {
  validate_problem(problem);
  const ArgumentCheck check(&problem, device);
  const std::vector<BoundBuffer> buffers = check_inputs(check, problem, inputs);
  check_like_o(check, problem, inputs, "o", outputs.o);
  if (outputs.lse.given()) check_lse(check, problem, inputs, outputs.lse);
  std::vector<NamedTensor> written{{"o", outputs.o}, {"lse", outputs.lse}};
  std::vector<NamedTensor> read = input_tensors(inputs, buffers);
  check.disjoint(written, read);
  return given(std::move(written), std::move(read));
}

std::vector<NamedTensor> validate_backward(const Problem& problem, const Inputs& inputs,
                                           const Outputs& outputs, const Tensor& d_o,
                                           const Gradients& gradients, Device device) {
  validate_problem(problem);
  const ArgumentCheck check(&problem, device);
  if (problem.layout_k == Layout::paged) {
    check.refuse("layout_k is paged; accepted by backward are dense and packed");
  }
  const std::vector<BoundBuffer> buffers = check_inputs(check, problem, inputs);
  check_like_o(check, problem, inputs, "o", outputs.o);
  check_lse(check, problem, inputs, outputs.lse);
  check_like_o(check, problem, inputs, "d_o", d_o);
  std::vector<NamedTensor> read = input_tensors(inputs, buffers);
  read.push_back({"o", outputs.o});
  read.push_back({"lse", outputs.lse});
  read.push_back({"d_o", d_o});
  std::vector<NamedTensor> written = check_gradients(check, problem, inputs, gradients, buffers);
  check.disjoint(written, read);
  return given(std::move(written), std::move(read));
}

void validate_workspace(const Problem& problem, const Tensor& workspace, std::int64_t bytes,
                        const std::vector<NamedTensor>& tensors, Device device) {
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
  check.disjoint({{"workspace", workspace}}, tensors);
}

}  // namespace attn::core
