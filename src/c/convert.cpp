#include "c/convert.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "attn/mask.hpp"
#include "c/boundary.hpp"
#include "c/handles.hpp"

namespace attn::c {
namespace {

// Of DLPack, by whose numbers attn.h goes.
enum DeviceNumber : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

DType dtype_of(const std::string& name, const attn_dtype& type) {
  if (type.lanes == 1) {
    switch (type.code << 8 | type.bits) {
      case kFloat << 8 | 64:
        return DType::f64;
      case kFloat << 8 | 32:
        return DType::f32;
      case kFloat << 8 | 16:
        return DType::f16;
      case kBfloat << 8 | 16:
        return DType::bf16;
      case kInt << 8 | 64:
        return DType::i64;
      case kInt << 8 | 32:
        return DType::i32;
      case kUInt << 8 | 8:
      case kBool << 8 | 8:
        return DType::u8;
      default:
        break;
    }
  }
  refuse("dtype of " + name + " has code " + std::to_string(type.code) + ", " +
         std::to_string(type.bits) + " bits and " + std::to_string(type.lanes) +
         " lanes; accepted are f64, f32, bf16, f16, i64, i32 and u8 as attn.h numbers them");
}

bool given(const attn_dtype& type) { return type.code != 0 || type.bits != 0 || type.lanes != 0; }

Device device_of(const std::string& name, const attn_device& device) {
  switch (device.device_type) {
    case kCpu:
    case kCudaHost:
      return {};
    case kCuda:
    case kCudaManaged:
      return {DeviceType::cuda, device.device_id};
    default:
      refuse("device of " + name + " has type " + std::to_string(device.device_type) +
             "; accepted are 1 (CPU), 2 (CUDA), 3 and 13 (memory of CUDA)");
  }
}

Layout layout_of(std::string_view name, std::int32_t value) {
  switch (value) {
    case ATTN_DENSE:
      return Layout::dense;
    case ATTN_PACKED:
      return Layout::packed;
    case ATTN_PAGED:
      return Layout::paged;
    default:
      refuse(std::string(name) + " is " + std::to_string(value) +
             "; accepted are ATTN_DENSE, ATTN_PACKED and ATTN_PAGED, 0 to 2");
  }
}

std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(Layout value) {
  return std::array{"dense", "packed", "paged"}[static_cast<std::size_t>(value)];
}
std::string text_of(DType value) { return std::string(name(value)); }

void refuse_other(std::string_view name, const std::string& of_member, const std::string& of_text,
                  bool equal) {
  if (equal) return;
  refuse(std::string(name) + " is " + of_member + " and in the text of the problem " + of_text +
         "; accepted is one of the two, or equal values");
}

// A member beside what the text of the problem says; `none` is not given.
template <class T>
void join(std::string_view name, T& of_text, T of_member, T none) {
  if (of_member == none) return;
  if (of_text != none) {
    refuse_other(name, text_of(of_member), text_of(of_text), of_text == of_member);
  }
  of_text = of_member;
}

void join_dropout(Dropout& of_text, const attn_problem& from) {
  const bool state = flag("rng_state", from.rng_state);
  if (from.dropout == 0 && from.seed == 0 && from.offset == 0 && !state) return;
  if (of_text.probability != 0 || of_text.seed != 0 || of_text.offset != 0 || of_text.rng_state) {
    refuse(
        "dropout, seed, offset or rng_state is given and stands in the text of the problem too; "
        "accepted is one of the two");
  }
  of_text = {from.dropout, from.seed, from.offset, state};
}

}  // namespace

Tensor tensor_of(std::string_view name, const attn_tensor* from) {
  Tensor tensor;
  if (from == nullptr) return tensor;
  const std::string called(name);
  tensor.dtype = dtype_of(called, from->dtype);
  tensor.device = device_of(called, from->device);
  if (from->ndim < 0 || from->ndim > kMaxRank) {
    refuse(called + " has " + std::to_string(from->ndim) + " dimensions; accepted are 0 to " +
           std::to_string(kMaxRank));
  }
  if (from->ndim > 0 && from->shape == nullptr) {
    refuse("shape of " + called + " is a null pointer; accepted are pointers to " +
           std::to_string(from->ndim) + " sizes");
  }
  tensor.rank = from->ndim;
  // Unsigned: sizes that no memory has may overflow here and are refused later.
  std::uint64_t stride = 1;
  for (int k = from->ndim - 1; k >= 0; --k) {
    const auto i = static_cast<std::size_t>(k);
    tensor.shape[i] = from->shape[k];
    tensor.strides[i] =
        from->strides != nullptr ? from->strides[k] : static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(from->shape[k]);
  }
  if (from->data != nullptr) {
    tensor.data =
        reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(from->data) + from->byte_offset);
  }
  return tensor;
}

attn_device device_of(Device device) {
  attn_device numbers{};
  numbers.device_type = device.type == DeviceType::cuda ? kCuda : kCpu;
  numbers.device_id = device.index;
  return numbers;
}

expr::Bindings bindings_of(std::string_view name, const attn_named_tensor* from,
                           std::size_t count) {
  expr::Bindings bindings;
  if (count == 0) return bindings;
  static_cast<void>(needed(name, from));
  for (std::size_t i = 0; i < count; ++i) {
    const char* const called =
        &needed("name of " + std::string(name) + "[" + std::to_string(i) + "]", from[i].name);
    const std::string label = "buffer '" + std::string(called) + "'";
    bindings.emplace_back(called, tensor_of(label, &needed(label, from[i].tensor)));
  }
  return bindings;
}

Problem problem_of(const attn_problem* given_problem) {
  const attn_problem from = taken("problem", given_problem);
  Problem problem = from.text != nullptr ? parse_problem(from.text) : Problem{};
  constexpr std::int64_t kNone = 0;
  join("batch", problem.batch, from.batch, kNone);
  join("seqlen_q", problem.seqlen_q, from.seqlen_q, kNone);
  join("seqlen_k", problem.seqlen_k, from.seqlen_k, kNone);
  join("heads_q", problem.heads_q, from.heads_q, kNone);
  join("heads_k", problem.heads_k, from.heads_k, kNone);
  join("head_dim", problem.head_dim, from.head_dim, kNone);
  join("head_dim_v", problem.head_dim_v, from.head_dim_v, kNone);
  join("page_size", problem.page_size, from.page_size, kNone);
  join("seqlen_prefix", problem.seqlen_prefix, from.seqlen_prefix, kNone);
  join("key_list", problem.key_list, from.key_list, kNone);
  join("layout_q", problem.layout_q, layout_of("layout_q", from.layout_q), Layout::dense);
  join("layout_k", problem.layout_k, layout_of("layout_k", from.layout_k), Layout::dense);
  if (given(from.dtype)) {
    const DType dtype = dtype_of("the problem", from.dtype);
    if (problem.dtype.given()) {
      refuse_other("dtype", text_of(dtype), text_of(problem.dtype), dtype == problem.dtype);
    }
    problem.dtype = dtype;
  }
  problem.paged_prefix |= flag("paged_prefix", from.paged_prefix);
  problem.sink |= flag("sink", from.sink);
  if (from.softmax_scale != 0) {
    const double of_text = problem.softmax_scale.value_or(from.softmax_scale);
    refuse_other("softmax_scale", std::to_string(from.softmax_scale), std::to_string(of_text),
                 of_text == from.softmax_scale);
    problem.softmax_scale = from.softmax_scale;
  }
  join_dropout(problem.dropout, from);
  if (from.mask != nullptr) {
    problem.mask = problem.mask.empty() ? from.mask->expr : problem.mask && from.mask->expr;
  }
  if (from.score != nullptr) problem.score = compose(from.score->expr, problem.score);
  return problem;
}

PlanOptions options_of(const attn_options* given_options) {
  const attn_options from = taken("options", given_options);
  PlanOptions options;
  if (from.backend != nullptr) options.backend = parse_backend(from.backend);
  if (from.algorithm != nullptr) options.algorithm = parse_algorithm(from.algorithm);
  if (from.kernel != nullptr) options.kernel = from.kernel;
  if (from.device.device_type != 0 || from.device.device_id != 0) {
    options.device = device_of("options", from.device);
  }
  options.threads = from.threads;
  options.deterministic = flag("deterministic", from.deterministic);
  options.batch_invariant = flag("batch_invariant", from.batch_invariant);
  if (from.reserved != 0) {
    refuse("reserved of options is " + std::to_string(from.reserved) + "; accepted is 0");
  }
  return options;
}

Context context_of(const attn_context* given_context) {
  const attn_context from = taken("context", given_context);
  Context context;
  if (from.executor != nullptr) context.executor = from.executor->executor;
  if (from.isa != nullptr) context.isa = parse_instruction_set(from.isa);
  if (from.log != nullptr) {
    context.log = [log = from.log, data = from.log_data](std::string_view message) {
      log(data, std::string(message).c_str());
    };
  }
  context.stream = from.stream;
  context.workspace = tensor_of("workspace", from.workspace);
  return context;
}

Inputs inputs_of(const attn_inputs* given_inputs) {
  const attn_inputs from = taken("inputs", &needed("inputs", given_inputs));
  Inputs inputs;
  const std::pair<Tensor*, std::pair<std::string_view, const attn_tensor*>> members[] = {
      {&inputs.q, {"q", from.q}},
      {&inputs.k, {"k", from.k}},
      {&inputs.v, {"v", from.v}},
      {&inputs.cu_seqlens_q, {"cu_seqlens_q", from.cu_seqlens_q}},
      {&inputs.cu_seqlens_k, {"cu_seqlens_k", from.cu_seqlens_k}},
      {&inputs.seqused_q, {"seqused_q", from.seqused_q}},
      {&inputs.seqused_k, {"seqused_k", from.seqused_k}},
      {&inputs.page_table, {"page_table", from.page_table}},
      {&inputs.prefix_k, {"prefix_k", from.prefix_k}},
      {&inputs.prefix_v, {"prefix_v", from.prefix_v}},
      {&inputs.prefix_page_table, {"prefix_page_table", from.prefix_page_table}},
      {&inputs.key_list, {"key_list", from.key_list}},
      {&inputs.sink, {"sink", from.sink}},
      {&inputs.rng_state, {"rng_state", from.rng_state}},
      {&inputs.scale_k, {"scale_k", from.scale_k}},
      {&inputs.scale_v, {"scale_v", from.scale_v}},
      {&inputs.scale_q, {"scale_q", from.scale_q}},
  };
  for (const auto& [member, named] : members) *member = tensor_of(named.first, named.second);
  inputs.buffers = bindings_of("buffers of inputs", from.buffers, from.num_buffers);
  return inputs;
}

Outputs outputs_of(std::string_view name, const attn_outputs* given_outputs) {
  const attn_outputs from = taken(name, &needed(name, given_outputs));
  return {tensor_of("o", from.o), tensor_of("lse", from.lse),
          tensor_of("max_logit", from.max_logit)};
}

OutputGradients output_gradients_of(const attn_output_gradients* given_gradients) {
  const attn_output_gradients from = taken("d_outputs", &needed("d_outputs", given_gradients));
  return {tensor_of("gradient of o", from.o), tensor_of("gradient of lse", from.lse)};
}

Gradients gradients_of(const attn_gradients* given_gradients) {
  const attn_gradients from = taken("gradients", &needed("gradients", given_gradients));
  return {tensor_of("dq", from.dq), tensor_of("dk", from.dk), tensor_of("dv", from.dv),
          tensor_of("dsink", from.dsink),
          bindings_of("buffers of gradients", from.buffers, from.num_buffers)};
}

}  // namespace attn::c
