#include "call.hpp"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "attn/error.hpp"
#include "kept_attribute.hpp"
#include "pytorch.hpp"

namespace attn::python {

Tensor* member(Inputs& inputs, std::string_view name) {
  if (name == "cu_seqlens_q") return &inputs.cu_seqlens_q;
  if (name == "cu_seqlens_k") return &inputs.cu_seqlens_k;
  if (name == "seqused_q") return &inputs.seqused_q;
  if (name == "seqused_k") return &inputs.seqused_k;
  if (name == "page_table") return &inputs.page_table;
  if (name == "key_list") return &inputs.key_list;
  if (name == "prefix_k") return &inputs.prefix_k;
  if (name == "prefix_v") return &inputs.prefix_v;
  if (name == "prefix_page_table") return &inputs.prefix_page_table;
  if (name == "scale_q") return &inputs.scale_q;
  if (name == "scale_k") return &inputs.scale_k;
  if (name == "scale_v") return &inputs.scale_v;
  if (name == "sink") return &inputs.sink;
  if (name == "rng_state") return &inputs.rng_state;
  return nullptr;
}

std::string accepted_dtypes(std::string_view name) {
  Inputs inputs;
  if (member(inputs, name) == nullptr || name == "prefix_k" || name == "prefix_v") {
    return "f32, bf16, f16 and f64";
  }
  const bool is_float = name == "sink" || name.starts_with("scale_");
  return is_float ? "f32" : name == "rng_state" ? "i64" : "i32 and i64";
}

namespace {

// Whether it holds the slopes [heads_q] of the keyword alibi, for which attn/options.py writes
// hq<heads>_alibi; formulas may call an array of theirs so too.
bool is_alibi(std::string_view name, const Tensor& tensor, const std::string& problem) {
  if (name != "slopes" || tensor.rank != 1) return false;
  return problem.find("hq" + std::to_string(tensor.shape[0]) + "_alibi") != std::string::npos;
}

// What the caller knows a buffer of attn/options.py by.
std::string_view argument_of(std::string_view buffer, const std::string& problem) {
  if (buffer == kMaskArray) return "mask";
  const bool is_slopes = buffer == "slopes" && problem.find("_alibi") != std::string::npos;
  return buffer == kHeadSlopes || is_slopes ? "alibi" : buffer;
}

// The largest of the numbers (of the differences of neighbours), which are on the CPU; 0 where they
// are not, or are no lengths, which the library then refuses.
std::int64_t longest(const Tensor& lengths, bool differences) {
  if (lengths.device.type != DeviceType::cpu || lengths.data == nullptr || lengths.rank != 1 ||
      (lengths.dtype != DType::i32 && lengths.dtype != DType::i64) || lengths.strides[0] != 1) {
    return 0;
  }
  const auto at = [&](std::int64_t i) {
    return lengths.dtype == DType::i64 ? static_cast<const std::int64_t*>(lengths.data)[i]
                                       : static_cast<const std::int32_t*>(lengths.data)[i];
  };
  std::int64_t most = 0;
  for (std::int64_t i = differences ? 1 : 0; i < lengths.shape[0]; ++i) {
    const std::int64_t before = differences ? at(i - 1) : 0;
    // Starts that decrease are refused by the library; their difference might overflow.
    if (at(i) > before && before >= 0) most = std::max(most, at(i) - before);
  }
  return most;
}

[[noreturn]] void refuse(std::string_view name, const Array& array, std::string_view accepted) {
  throw Error(ErrorCode::invalid_argument, std::string(name) + " is " + described(array) +
                                               "; accepted are " + std::string(accepted));
}

}  // namespace

// An index out of range reads 0, so that an array of other lengths would hide keys without a word.
void check_mask(const Tensor& mask, const std::string& shown, const Inputs& inputs,
                const Problem& problem) {
  const Tensor& q = inputs.q;
  const Tensor& k = inputs.k;
  const bool packed_q = inputs.cu_seqlens_q.given(), packed_k = inputs.cu_seqlens_k.given();
  const bool paged = inputs.page_table.given();
  const std::int64_t prefix =
      inputs.prefix_k.rank > 0 ? inputs.prefix_k.shape[0] : problem.seqlen_prefix;
  if (q.rank != (packed_q ? 3 : 4) || k.rank != (packed_k ? 3 : 4)) return;  // refused later
  // Sequences of a packed or paged tensor have lengths of their own, which on a GPU are not looked
  // at: a mask has a row and a column for the longest one at least.
  const auto length = [](const Tensor& x, bool packed, const Tensor& cu_seqlens) {
    return packed ? longest(cu_seqlens, true) : x.shape[1];
  };
  const std::array<std::int64_t, 4> whole{
      packed_q ? inputs.cu_seqlens_q.shape[0] - 1 : q.shape[0], q.shape[packed_q ? 1 : 2],
      length(q, packed_q, inputs.cu_seqlens_q),
      prefix +
          (paged ? longest(inputs.seqused_k, false) : length(k, packed_k, inputs.cu_seqlens_k))};
  const std::array<bool, 4> at_least{false, false, packed_q, packed_k || paged};
  for (std::int32_t i = 1; i <= mask.rank; ++i) {
    const auto axis = static_cast<std::size_t>(4 - i);
    const std::int64_t size = mask.shape[static_cast<std::size_t>(mask.rank - i)];
    if (size == 1 || size == whole[axis] || (at_least[axis] && size > whole[axis])) continue;
    const auto sizes = [&](std::size_t which) {
      return std::to_string(whole[which]) + (at_least[which] ? " or more" : "");
    };
    throw Error(ErrorCode::invalid_argument,
                "mask is " + shown + "; accepted are [seqlen_q, seqlen_k] and [batch, " +
                    "heads_q, seqlen_q, seqlen_k], here of " + sizes(0) + ", " + sizes(1) + ", " +
                    sizes(2) + " and " + sizes(3) + ", where sizes of 1 broadcast");
  }
}

// As for masks: heads without a slope would have none without a word.
void check_alibi(const Tensor& slopes, const std::string& shown, const Inputs& inputs) {
  const Tensor& q = inputs.q;
  if (q.rank < 3) return;  // refused later
  const std::int64_t heads = q.shape[static_cast<std::size_t>(q.rank) - 2];
  const std::int64_t batch =
      inputs.cu_seqlens_q.given() ? inputs.cu_seqlens_q.shape[0] - 1 : q.shape[0];
  const auto fits = [](std::int64_t size, std::int64_t wanted) {
    return size == 1 || size == wanted;
  };
  if (slopes.rank == 2 && fits(slopes.shape[0], batch) && fits(slopes.shape[1], heads)) return;
  if (slopes.rank == 1 && slopes.shape[0] == heads && slopes.dtype == DType::f32) return;
  throw Error(ErrorCode::invalid_argument,
              "alibi is " + shown + "; accepted are f32[heads_q] and f32[batch, heads_q], " +
                  "here of " + std::to_string(batch) + " and " + std::to_string(heads));
}

Call::Call(const Options& options, nb::handle q, nb::handle k, nb::handle v, Recording recording)
    : options_(options),
      check_derivative_(recording),
      plan_options_(options.plan),
      q_(input("q", q)),
      k_(input("k", k)),
      v_(input("v", v)) {
  check_trace(recording);
  if (has_type_q() && q_.is_bool) refuse("q", q_, "u8");
  if (!has_type_q() && !is_floating(q_.tensor.dtype)) refuse("q", q_, accepted_dtypes("q"));
  if (k_.is_bool) refuse("k", k_, "the dtype of q, " + std::string(name(q_.tensor.dtype)));
  if (v_.is_bool) refuse("v", v_, "the dtype of q, " + std::string(name(q_.tensor.dtype)));
  check_layout();
  inputs_.q = ordered(q_);
  inputs_.k = ordered(k_);
  inputs_.v = ordered(v_);
  plan_options_.device = q_.tensor.device;
  if (!on_gpu()) context_.executor = executor_of(q_, plan_options_.threads);
  take_tensors(options.tensors);
  take_buffers(options.buffers);
}

std::shared_ptr<Executor> executor_of(const Array& q, int asked) {
  const int threads = get_num_threads();
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  if (asked > 0) return shared_executor(std::min(asked, std::max(threads, cpus)));
  const int theirs = q.is_pytorch ? pytorch::num_threads() : 0;
  return shared_executor(theirs > 0 ? std::min(threads, theirs) : threads);
}

void DerivativeCheck::operator()(std::string_view name, const Array& array) {
  static constinit KeptAttribute records("attn.arrays", "records_gradients");
  static constinit KeptAttribute has_tangent("attn.arrays", "has_tangent");
  if (!array.is_pytorch) return;
  if (!is_forward_mode_) is_forward_mode_ = pytorch::is_forward_mode();
  if (*is_forward_mode_ && nb::cast<bool>(has_tangent.get()(array.object))) {
    throw Error(ErrorCode::unsupported,
                std::string(name) +
                    " has a tangent of forward-mode differentiation, which would be lost; accepted "
                    "are torch.autograd's gradients");
  }
  if (recording_ == Recording::done_by_caller) return;
  check_class(name, array);
  if (!requires_grad(array.object)) return;
  if (!records_gradients_) records_gradients_ = nb::cast<bool>(records.get()(array.object));
  if (*records_gradients_) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) +
                    " requires a gradient, which this call does not record; accepted are tensors "
                    "without one, any under torch.no_grad(), and attn.torch, which records it");
  }
}

// A trace would hold the call's result as a constant.
void Call::check_trace(Recording recording) const {
  if (recording == Recording::done_by_caller || !q_.is_pytorch || !pytorch::is_observed()) return;
  if (!nb::cast<bool>(nb::module_::import_("attn.arrays").attr("is_traced")())) return;
  throw Error(ErrorCode::unsupported,
              "q is a tensor in a trace of PyTorch (torch.jit.trace, make_fx), which this call "
              "would be missing from; accepted is attn.torch");
}

// What most often is another layout than the one that was said.
void Call::check_layout() const {
  const auto check_rows = [this](std::string_view name, const Array& array, std::string_view ends) {
    if (array.tensor.rank == 3 && !options_.tensors.contains(nb::str(ends.data(), ends.size()))) {
      refuse(name, array,
             "[batch, seqlen, heads, head_dim], and [total, heads, head_dim] with " +
                 std::string(ends) + ", which is not given");
    }
  };
  check_rows("q", q_, "cu_seqlens_q");
  check_rows("k", k_, "cu_seqlens_k");
  const auto& q = q_.tensor;
  const auto& k = k_.tensor;
  if (options_.heads_first || q.rank != 4 || k.rank != 4) return;
  const std::int64_t heads = q.shape[2], heads_k = k.shape[2];
  if (heads_k == 0 || heads % heads_k == 0 || options_.tensors.contains("page_table")) return;
  // The heads of [batch, heads, seqlen, head_dim] would be the lengths.
  if (q.shape[1] < heads && k.shape[1] < heads_k && k.shape[1] > 0 &&
      q.shape[1] % k.shape[1] == 0) {
    throw Error(ErrorCode::invalid_argument,
                "q is " + described(q_) + " and k " + described(k_) + ", of " +
                    std::to_string(heads) + " and " + std::to_string(heads_k) +
                    " heads; accepted are multiples of heads_k, and layout='bhsd' for tensors that "
                    "are [batch, heads, seqlen, head_dim]");
  }
}

Array Call::input(std::string_view name, nb::handle object) {
  Array array = view(name, object);
  check_derivative_(name, array);
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
    if (array.is_bool) {
      refuse(name, array, accepted_dtypes(name));
    }
    *known = array.tensor;
    // Laid out as Q or K, without its last dimension.
    if (options_.heads_first && known->rank == 3 && name.starts_with("scale_")) {
      std::swap(known->shape[1], known->shape[2]);
      std::swap(known->strides[1], known->strides[2]);
    }
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
    Array array = input(argument_of(name, options_.problem), value);
    if (name == kMaskArray) {
      check_mask(array.tensor, described(array), inputs_, *options_.described.problem);
    }
    if (name == kHeadSlopes || is_alibi(name, array.tensor, options_.problem)) {
      check_alibi(array.tensor, described(array), inputs_);
    }
    inputs_.buffers.emplace_back(name, array.tensor);
    buffers_.emplace_back(std::move(name), std::move(array));
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

bool Call::has_type_q() const { return options_.described.problem->type_q != CacheType::as_q; }

std::vector<std::int64_t> Call::o_shape() const {
  const Tensor& q = q_.tensor;
  const Tensor& v = v_.tensor;
  std::vector<std::int64_t> shape(q.shape.begin(), q.shape.begin() + q.rank);
  shape.back() = v.shape[static_cast<std::size_t>(v.rank - 1)];
  // A row of blocks has more or fewer bytes than elements.
  constexpr std::int64_t kBlock = 32;
  const std::int64_t bytes = row_size(options_.described.problem->type_v, kBlock);
  if (bytes != kBlock) shape.back() = shape.back() / bytes * kBlock;
  return shape;
}

std::vector<std::int64_t> Call::lse_shape() const {
  const Tensor& q = inputs_.q;
  if (q.rank == 3) return {q.shape[1], q.shape[0]};
  return {q.shape[0], q.shape[2], q.shape[1]};
}

std::int64_t Call::heads_q() const {
  const Tensor& q = inputs_.q;
  return q.shape[static_cast<std::size_t>(q.rank) - 2];
}

Array Call::result(std::string_view name, nb::handle given, ResultType type,
                   const std::vector<std::int64_t>& shape) {
  // Only the output has the rank of q and its dimensions, in their order.
  const Tensor* order = name == "out" ? &q_.tensor : nullptr;
  const Problem& problem = *options_.described.problem;
  if (given.is_none() && name == "out" && problem.type_o.given()) {
    // Any other type_o must be q's own: the call refuses the rest.
    if (problem.type_o == DType::f32) type = ResultType::float32;
  } else if (given.is_none() && name == "out" && has_type_q()) {
    const DType dtype = problem.dtype;
    if (dtype != DType::f32) {
      throw Error(ErrorCode::invalid_argument,
                  "out is not given and type_o is " + std::string(attn::name(dtype)) +
                      "; accepted beside type_q is an array of that dtype, or type_o='f32'");
    }
    type = ResultType::float32;
  }
  if (given.is_none()) return allocate(q_, type, shape, order);
  Array array = writable_view(name, given);
  check_derivative_(name, array);
  return array;
}

Plan Call::plan(Phase phase) const {
  return make_plan(complete(options_.described, inputs_), phase, plan_options_, context_);
}

std::shared_ptr<const Plan> Call::known_plan(Phase phase) const {
  return plan_of(options_.described, inputs_, phase, plan_options_, context_);
}

Context Call::context(const Plan& plan) {
  Context context = context_;
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
