#include "call.hpp"

#include <array>
#include <utility>

#include "attn/error.hpp"

namespace attn::python {

Tensor* member(Inputs& inputs, std::string_view name) {
  if (name == "cu_seqlens_q") return &inputs.cu_seqlens_q;
  if (name == "cu_seqlens_k") return &inputs.cu_seqlens_k;
  if (name == "seqused_q") return &inputs.seqused_q;
  if (name == "seqused_k") return &inputs.seqused_k;
  if (name == "page_table") return &inputs.page_table;
  if (name == "sink") return &inputs.sink;
  if (name == "rng_state") return &inputs.rng_state;
  return nullptr;
}

Call::Call(const Options& options, nb::handle q, nb::handle k, nb::handle v, Recording recording)
    : options_(options),
      recording_(recording),
      plan_options_(options.plan),
      q_(input("q", q)),
      k_(input("k", k)),
      v_(input("v", v)) {
  inputs_.q = ordered(q_);
  inputs_.k = ordered(k_);
  inputs_.v = ordered(v_);
  plan_options_.device = q_.tensor.device;
  take_tensors(options.tensors);
  take_buffers(options.buffers);
}

Array Call::input(std::string_view name, nb::handle object) {
  // Never freed: Python may be gone by then.
  static const nb::handle records =
      nb::object(nb::module_::import_("attn.arrays").attr("records_gradients")).release();
  Array array = view(name, object);
  if (recording_ == Recording::done_by_caller || !array.is_pytorch ||
      !requires_grad(array.object)) {
    return array;
  }
  if (!records_gradients_) records_gradients_ = nb::cast<bool>(records(array.object));
  if (*records_gradients_) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) +
                    " requires a gradient, which this call does not record; accepted are tensors "
                    "without one, any under torch.no_grad(), and attn.torch, which records it");
  }
  return array;
}

void Call::take_tensors(const nb::dict& tensors) {
  for (const auto [key, value] : tensors) {
    const auto name = nb::cast<std::string>(key);
    Array array = input(name, value);
    Tensor* const known = member(inputs_, name);
    if (known == nullptr) {
      throw Error(ErrorCode::internal, "no tensor of a call is called " + name);
    }
    *known = array.tensor;
    kept_.push_back(std::move(array));
  }
}

void Call::take_buffers(const nb::dict& buffers) {
  for (const auto [key, value] : buffers) {
    auto name = nb::cast<std::string>(key);
    if (nb::isinstance<nb::int_>(value) || nb::isinstance<nb::float_>(value)) {
      inputs_.buffers.emplace_back(name, scalar(name, value));
      continue;
    }
    Array array = input(name, value);
    if (name == "_allowed") check_mask(array.tensor);  // attn/options.py, MASK_ARRAY
    inputs_.buffers.emplace_back(name, array.tensor);
    buffers_.emplace_back(std::move(name), std::move(array));
  }
}

// An index out of range reads 0, so that an array of other lengths would hide keys without a word.
void Call::check_mask(const Tensor& mask) const {
  const Tensor& q = inputs_.q;
  const Tensor& k = inputs_.k;
  // Sequences of a packed or paged tensor have lengths of their own.
  if (q.rank != 4 || k.rank != 4 || inputs_.page_table.given()) return;
  const std::array<std::int64_t, 4> whole{q.shape[0], q.shape[2], q.shape[1], k.shape[1]};
  for (std::int32_t i = 1; i <= mask.rank; ++i) {
    const std::int64_t size = mask.shape[static_cast<std::size_t>(mask.rank - i)];
    const std::int64_t wanted = whole[static_cast<std::size_t>(4 - i)];
    if (size == 1 || size == wanted) continue;
    throw Error(ErrorCode::invalid_argument,
                "mask is " + to_string(mask) + "; accepted are [seqlen_q, seqlen_k] and [batch, " +
                    "heads_q, seqlen_q, seqlen_k], here of " + std::to_string(whole[0]) + ", " +
                    std::to_string(whole[1]) + ", " + std::to_string(whole[2]) + " and " +
                    std::to_string(whole[3]) + ", where sizes of 1 broadcast");
  }
}

// A number of the mask or score, in memory that lives as long as the call.
Tensor Call::scalar(std::string_view name, nb::handle number) {
  if (nb::isinstance<nb::float_>(number)) {
    return tensor(&floats_.emplace_back(nb::cast<float>(number)), {});
  }
  std::int32_t value = 0;
  if (!nb::try_cast(number, value)) {
    throw Error(ErrorCode::invalid_argument, std::string(name) + " is " + nb::str(number).c_str() +
                                                 "; accepted are integers of 32 bits");
  }
  return tensor(&integers_.emplace_back(value), {});
}

const Array& Call::buffer(std::string_view name) const {
  for (const auto& [known, array] : buffers_) {
    if (known == name) return array;
  }
  throw Error(ErrorCode::invalid_argument,
              "gradients names " + std::string(name) +
                  "; accepted are q, k, v, sink and the buffers of the score that are given");
}

Tensor Call::ordered(const Array& array) const {
  Tensor tensor = array.tensor;
  if (options_.heads_first && tensor.rank == 4) {
    std::swap(tensor.shape[1], tensor.shape[2]);
    std::swap(tensor.strides[1], tensor.strides[2]);
  }
  return tensor;
}

std::vector<std::int64_t> Call::o_shape() const {
  const Tensor& q = q_.tensor;
  const Tensor& v = v_.tensor;
  std::vector<std::int64_t> shape(q.shape.begin(), q.shape.begin() + q.rank);
  shape.back() = v.shape[static_cast<std::size_t>(v.rank - 1)];
  return shape;
}

std::vector<std::int64_t> Call::lse_shape() const {
  const Tensor& q = inputs_.q;
  if (q.rank == 3) return {q.shape[1], q.shape[0]};
  return {q.shape[0], q.shape[2], q.shape[1]};
}

Array Call::result(std::string_view name, nb::handle given, ResultType type,
                   const std::vector<std::int64_t>& shape) const {
  return given.is_none() ? allocate(q_, type, shape) : writable_view(name, given);
}

Plan Call::plan(Phase phase) const {
  return make_plan(complete(options_.described, inputs_), phase, plan_options_);
}

std::shared_ptr<const Plan> Call::known_plan(Phase phase) const {
  return plan_of(options_.described, inputs_, phase, plan_options_);
}

Context Call::context(const Plan& plan) {
  Context context;
  if (!on_gpu()) return context;
  context.stream = current_stream(q_);
  if (plan.workspace_bytes > 0) {
    // float32 elements; the allocators of frameworks align to 256 bytes and more.
    workspace_ = allocate(q_, ResultType::float32, {(plan.workspace_bytes + 3) / 4});
    context.workspace =
        tensor(workspace_.tensor.data, DType::u8, {plan.workspace_bytes}, workspace_.tensor.device);
  }
  return context;
}

}  // namespace attn::python
