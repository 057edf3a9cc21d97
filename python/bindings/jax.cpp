// attn as foreign functions of XLA: what attn/jax.py puts into JAX's programs.
//
// Results of a forward call: out, lse, and where it has a third, max_logit.
//
// Operands: q, k, v, or d_out, q, k, v, out, lse; then those that the attribute `names` lists.
// Other attributes: problem, a descriptor; rank, of q; heads_first, seqlen_q, seqlen_k, seed,
// offset, backend, algorithm, threads, deterministic, batch_invariant, as attn._attn.Options has
// them; wanted, of a backward call. Operands may have more dimensions in front, as many for all,
// which jax.vmap adds: of size 1 where an operand is the same for all elements.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "call.hpp"
#include "operations.hpp"
#include "xla_ffi.hpp"

namespace attn::python {
namespace {

xla::Header header(std::size_t size) { return {size, nullptr}; }

class Attributes {
 public:
  explicit Attributes(const xla::Attributes& from) : from_(from) {}

  std::string_view text(std::string_view name) const {
    const auto& span = *static_cast<const xla::Span*>(find(name, xla::AttributeType::string));
    return {span.data, span.size};
  }
  std::int64_t integer(std::string_view name) const {
    const auto& scalar = *static_cast<const xla::Scalar*>(find(name, xla::AttributeType::scalar));
    if (scalar.dtype != xla::DType::s64) refuse(name);
    return *static_cast<const std::int64_t*>(scalar.value);
  }

 private:
  [[noreturn]] static void refuse(std::string_view name) {
    throw Error(ErrorCode::internal, "a call from JAX lacks the attribute " + std::string(name));
  }
  const void* find(std::string_view name, xla::AttributeType type) const {
    for (std::int64_t i = 0; i < from_.count; ++i) {
      const xla::Span& known = *from_.names[i];
      if (name == std::string_view(known.data, known.size) && from_.types[i] == type) {
        return from_.values[i];
      }
    }
    refuse(name);
  }

  const xla::Attributes& from_;
};

DType dtype_of(std::string_view name, xla::DType dtype) {
  switch (dtype) {
    case xla::DType::pred:
    case xla::DType::u8:
      return DType::u8;
    case xla::DType::s32:
    case xla::DType::u32:  // of rng_state alone
      return DType::i32;
    case xla::DType::s64:
      return DType::i64;
    case xla::DType::f16:
      return DType::f16;
    case xla::DType::f32:
      return DType::f32;
    case xla::DType::f64:
      return DType::f64;
    case xla::DType::bf16:
      return DType::bf16;
  }
  throw Error(
      ErrorCode::invalid_argument,
      std::string(name) + " has dtype " + std::to_string(static_cast<int>(dtype)) +
          " of XLA; accepted are float32, bfloat16, float16, float64, int32, int64, uint8, bool");
}

// An operand or result of every element that vmap joined.
struct Operand {
  Tensor tensor;  // of the first element
  std::vector<std::int64_t> sizes;

  // The tensor of the element at `place`, one index for each of `sizes`.
  Tensor at(const std::vector<std::int64_t>& place) const {
    std::int64_t offset = tensor.size();
    std::int64_t elements = 0;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (sizes[i] > 1) elements += place[i] * offset;
      offset *= sizes[i];
    }
    Tensor result = tensor;
    result.data = static_cast<char*>(tensor.data) +
                  elements * static_cast<std::int64_t>(size_of(tensor.dtype));
    return result;
  }
  bool is_shared() const {
    return std::all_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size == 1; });
  }
};

Operand operand(std::string_view name, const xla::Buffer& buffer, std::size_t added,
                Device device) {
  const auto rank = static_cast<std::size_t>(buffer.rank);
  if (rank <= added || rank - added > static_cast<std::size_t>(kMaxRank)) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) + " has " + std::to_string(buffer.rank) +
                    " dimensions; accepted are 1 to " + std::to_string(kMaxRank));
  }
  Operand result;
  result.sizes.assign(buffer.shape, buffer.shape + added);
  Tensor& tensor = result.tensor;
  tensor.data = buffer.data;
  tensor.dtype = dtype_of(name, buffer.dtype);
  tensor.device = device;
  tensor.rank = static_cast<std::int32_t>(rank - added);
  std::int64_t stride = 1;
  for (std::size_t i = rank - added; i-- > 0;) {
    tensor.shape[i] = buffer.shape[added + i];
    tensor.strides[i] = stride;
    stride *= tensor.shape[i];
  }
  return result;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

void check(const xla::Frame& frame, xla::Error* error, std::string_view what) {
  if (error == nullptr) return;
  xla::DetailsArguments details{header(sizeof(details)), error, "", xla::ErrorCode::internal};
  frame.api->get_error_details(&details);
  const std::string message = details.message;
  xla::DestroyArguments owned{header(sizeof(owned)), error};
  frame.api->destroy_error(&owned);
  throw Error(ErrorCode::device, "XLA gives no " + std::string(what) + ": " + message);
}

// Memory of a GPU from XLA's allocator, given back to it at the end of the call.
class Workspace {
 public:
  Workspace(const xla::Frame& frame, std::int64_t bytes)
      : frame_(frame), bytes_(static_cast<std::size_t>(bytes) + kAlignment - kGiven) {
    xla::AllocateArguments memory{header(sizeof(memory)), frame.context, bytes_, kGiven, nullptr};
    check(frame, frame.api->allocate_device_memory(&memory), "workspace");
    data_ = memory.data;
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    xla::FreeArguments memory{header(sizeof(memory)), frame_.context, bytes_, data_};
    if (xla::Error* error = frame_.api->free_device_memory(&memory); error != nullptr) {
      xla::DestroyArguments owned{header(sizeof(owned)), error};
      frame_.api->destroy_error(&owned);
    }
  }

  // Aligned as the library wants it.
  void* data() const {
    void* first = data_;
    std::size_t space = bytes_;
    return std::align(kAlignment, bytes_ - (kAlignment - kGiven), first, space);
  }

 private:
  static constexpr std::size_t kAlignment = 256;
  static constexpr std::size_t kGiven = 16;  // the most that XLA takes

  const xla::Frame& frame_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

// A call of the library by XLA.
class Invocation {
 public:
  Invocation(const xla::Frame& frame, Phase phase, DeviceType device_type)
      : frame_(frame), attributes_(frame.attributes), phase_(phase) {
    device_.type = device_type;
    if (device_type == DeviceType::cuda) device_.index = ordinal();
    heads_first_ = attributes_.integer("heads_first") != 0;
    names_ = phase == Phase::forward
                 ? std::vector<std::string_view>{"q", "k", "v"}
                 : std::vector<std::string_view>{"d_out", "q", "k", "v", "out", "lse"};
    const std::size_t first_names = names_.size();
    for (const std::string_view name : split(attributes_.text("names"))) names_.push_back(name);
    const auto count = static_cast<std::size_t>(frame.arguments.count);
    if (names_.size() != count) {
      throw Error(ErrorCode::internal, "a call from JAX has " + std::to_string(count) +
                                           " operands and names " + std::to_string(names_.size()));
    }
    const xla::Buffer& q = *frame.arguments.buffers[phase == Phase::forward ? 0 : 1];
    added_ =
        static_cast<std::size_t>(std::max<std::int64_t>(0, q.rank - attributes_.integer("rank")));
    operands_.reserve(count);
    Inputs inputs;
    for (std::size_t i = 0; i < count; ++i) {
      const xla::Buffer& buffer = *frame.arguments.buffers[i];
      operands_.push_back(operand(names_[i], buffer, added_, device_));
      const bool is_buffer = i >= first_names && member(inputs, names_[i]) == nullptr;
      if (buffer.dtype == xla::DType::pred && !is_buffer) {
        const std::string text = to_string(operands_.back().tensor);
        throw Error(ErrorCode::invalid_argument,
                    std::string(names_[i]) + " is bool" + text.substr(name(DType::u8).size()) +
                        "; accepted are " + accepted_dtypes(names_[i]));
      }
    }
    results_.reserve(static_cast<std::size_t>(frame.results.count));
    for (std::int64_t i = 0; i < frame.results.count; ++i) {
      results_.push_back(operand("result", *frame.results.buffers[i], added_, device_));
    }
    options_.device = device_;
    if (const auto text = attributes_.text("backend"); text != "auto") {
      options_.backend = parse_backend(text);
    }
    if (const auto text = attributes_.text("algorithm"); text != "auto") {
      options_.algorithm = parse_algorithm(text);
    }
    options_.threads = static_cast<int>(attributes_.integer("threads"));
    options_.deterministic = attributes_.integer("deterministic") != 0;
    options_.batch_invariant = attributes_.integer("batch_invariant") != 0;
  }

  // Each element that vmap joined; all at once where they are sequences of one batch.
  void run() {
    std::vector<std::int64_t> place(added_, 0);
    const std::vector<std::int64_t>& sizes = results_.front().sizes;
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
    described_ = {parsed(std::string(attributes_.text("problem"))), attributes_.integer("seqlen_q"),
                  attributes_.integer("seqlen_k"),
                  static_cast<std::uint64_t>(attributes_.integer("seed")),
                  static_cast<std::uint64_t>(attributes_.integer("offset"))};
    if (added_ > 0 && are_one_batch()) {
      std::int64_t elements = 1;
      for (const std::int64_t size : sizes) elements *= size;
      const auto join = [&](std::vector<Operand>& all) {
        for (Operand& one : all) {
          if (!one.is_shared()) one.tensor.shape[0] *= elements;
        }
      };
      join(operands_);
      join(results_);
      run_element(place);
      return;
    }
    while (true) {
      run_element(place);
      std::size_t i = added_;
      while (i > 0 && ++place[i - 1] == sizes[i - 1]) place[--i] = 0;
      if (i == 0) return;
    }
  }

 private:
  // Whether the elements may be joined along the batch: nothing tells sequences apart but their
  // place in q, k, v and what belongs to these, and every element has its own.
  bool are_one_batch() const {
    if (described_.problem->dropout.probability > 0 ||
        attributes_.text("problem").find("batch") != std::string_view::npos) {
      return false;
    }
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      const Operand& one = operands_[i];
      const bool is_rows = i < (phase_ == Phase::forward ? 3U : 6U) || names_[i] == "d_lse";
      if (is_rows ? one.sizes != results_.front().sizes || one.tensor.rank < 3
                  : !is_read_alike(names_[i], one)) {
        return false;
      }
    }
    // A gradient of what is shared is one for each element.
    const std::vector<std::string_view> wanted = phase_ == Phase::forward
                                                     ? std::vector<std::string_view>{}
                                                     : split(attributes_.text("wanted"));
    if (std::any_of(wanted.begin(), wanted.end(), [](std::string_view name) {
          return name != "q" && name != "k" && name != "v";
        })) {
      return false;
    }
    return std::all_of(results_.begin(), results_.end(),
                       [](const Operand& one) { return one.tensor.rank >= 3; });
  }
  // Whether every sequence of a batch, in every element, reads the same of a tensor.
  static bool is_read_alike(std::string_view name, const Operand& one) {
    Inputs inputs;
    if (member(inputs, name) != nullptr && name != "sink") return false;
    return one.is_shared() && (name != "bias" || one.tensor.rank == 2 || one.tensor.shape[0] == 1);
  }

  Tensor ordered(Tensor tensor) const {
    if (heads_first_ && tensor.rank == 4) {
      std::swap(tensor.shape[1], tensor.shape[2]);
      std::swap(tensor.strides[1], tensor.strides[2]);
    }
    return tensor;
  }

  void run_element(const std::vector<std::int64_t>& place) {
    Inputs inputs;
    OutputGradients given;
    const std::size_t first = phase_ == Phase::forward ? 0 : 1;
    inputs.q = ordered(operands_[first].at(place));
    inputs.k = ordered(operands_[first + 1].at(place));
    inputs.v = ordered(operands_[first + 2].at(place));
    for (std::size_t i = phase_ == Phase::forward ? 3 : 6; i < operands_.size(); ++i) {
      const Tensor tensor = operands_[i].at(place);
      const std::string_view name = names_[i];
      if (name == "rng_state") {
        inputs.rng_state = state_of(tensor);
      } else if (name == "d_lse") {
        given.lse = tensor;
      } else if (Tensor* known = member(inputs, name); known != nullptr) {
        *known = tensor;
      } else {
        inputs.buffers.emplace_back(name, tensor);
      }
    }
    for (const auto& [name, tensor] : inputs.buffers) {
      if (name == kMaskArray) check_mask(tensor, to_string(tensor), inputs, *described_.problem);
      if (name == kHeadSlopes) check_alibi(tensor, to_string(tensor), inputs);
    }
    Context context;
    if (device_.type == DeviceType::cpu) context.executor = default_executor();
    const std::shared_ptr<const Plan> known =
        plan_of(described_, inputs, phase_, options_, context);
    const Plan& plan = *known;
    std::optional<Workspace> workspace;
    if (device_.type == DeviceType::cuda) {
      context.stream = stream();
      if (plan.workspace_bytes > 0) {
        workspace.emplace(frame_, plan.workspace_bytes);
        context.workspace = tensor(workspace->data(), DType::u8, {plan.workspace_bytes}, device_);
      }
    }
    if (phase_ == Phase::forward) {
      Outputs outputs{.o = ordered(results_[0].at(place)), .lse = results_[1].at(place)};
      if (results_.size() > 2) outputs.max_logit = results_[2].at(place);
      run_forward(plan, inputs, outputs, context);
      return;
    }
    given.o = ordered(operands_[0].at(place));
    Gradients gradients;
    const std::vector<std::string_view> wanted = split(attributes_.text("wanted"));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Tensor tensor = results_[i].at(place);
      if (wanted[i] == "q") {
        gradients.dq = ordered(tensor);
      } else if (wanted[i] == "k") {
        gradients.dk = ordered(tensor);
      } else if (wanted[i] == "v") {
        gradients.dv = ordered(tensor);
      } else if (wanted[i] == "sink") {
        gradients.dsink = tensor;
      } else {
        gradients.buffers.emplace_back(wanted[i], tensor);
      }
    }
    run_backward(plan, inputs, {ordered(operands_[4].at(place)), operands_[5].at(place)}, given,
                 gradients, context);
  }

  // uint32 [4], low halves first, as i64 [2]: JAX has no integers of 64 bits by default.
  static Tensor state_of(const Tensor& words) {
    return tensor(words.data, DType::i64, {2}, words.device);
  }

  std::int32_t ordinal() const {
    xla::OrdinalArguments asked{header(sizeof(asked)), frame_.context, 0};
    constexpr std::size_t kNeeded =
        offsetof(xla::Api, get_device_ordinal) + sizeof(xla::Api::get_device_ordinal);
    if (frame_.api->header.size < kNeeded) return 0;
    check(frame_, frame_.api->get_device_ordinal(&asked), "number of the GPU");
    return asked.ordinal;
  }

  // In which XLA works.
  void* stream() const {
    xla::StreamArguments asked{header(sizeof(asked)), frame_.context, nullptr};
    check(frame_, frame_.api->get_stream(&asked), "stream");
    return asked.stream;
  }

  const xla::Frame& frame_;
  Attributes attributes_;
  Phase phase_;
  Device device_{};
  bool heads_first_ = false;
  std::size_t added_ = 0;  // dimensions in front, of vmap
  PlanOptions options_;
  Described described_;
  std::vector<std::string_view> names_;
  std::vector<Operand> operands_, results_;
};

xla::ErrorCode code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return xla::ErrorCode::invalid_argument;
    case ErrorCode::unsupported:
      return xla::ErrorCode::unimplemented;
    case ErrorCode::unavailable:
      return xla::ErrorCode::unavailable;
    case ErrorCode::out_of_memory:
      return xla::ErrorCode::resource_exhausted;
    case ErrorCode::device:
    case ErrorCode::io:
    case ErrorCode::internal:
      return xla::ErrorCode::internal;
  }
  return xla::ErrorCode::internal;
}

xla::Error* failure(const xla::Frame& frame, xla::ErrorCode code, const char* message) {
  xla::ErrorArguments arguments{header(sizeof(arguments)), message, code};
  return frame.api->create_error(&arguments);
}

template <Phase phase, DeviceType device>
xla::Error* handle(xla::Frame* frame) {
  const xla::Extension* extension = frame->header.extensions;
  if (extension != nullptr && extension->type == xla::ExtensionType::metadata) {
    // What xla_ffi.hpp describes; version 0.1, whose XLA shows no functions here, has it all too.
    constexpr std::int32_t kOldest = 1, kNewest = 4;
    xla::Metadata& asked = *reinterpret_cast<const xla::MetadataExtension*>(extension)->metadata;
    const std::int32_t known = frame->api != nullptr ? frame->api->version.minor : kOldest;
    asked.version = {header(sizeof(asked.version)), 0, std::min(known, kNewest)};
    asked.traits = 0;
    return nullptr;
  }
  try {
    Invocation(*frame, phase, device).run();
    return nullptr;
  } catch (const Error& error) {
    return failure(*frame, code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failure(*frame, xla::ErrorCode::resource_exhausted,
                   "memory for the call could not be allocated");
  } catch (const std::exception& error) {
    return failure(*frame, xla::ErrorCode::internal, error.what());
  }
}

template <Phase phase, DeviceType device>
nb::capsule capsule() {
  return nb::capsule(reinterpret_cast<void*>(&handle<phase, device>));
}

}  // namespace

void bind_jax(nb::module_& module) {
  // The handlers that attn/jax.py registers, by phase and platform.
  module.def("xla_handler", [](bool backward, bool cuda) {
    if (backward) {
      return cuda ? capsule<Phase::backward, DeviceType::cuda>()
                  : capsule<Phase::backward, DeviceType::cpu>();
    }
    return cuda ? capsule<Phase::forward, DeviceType::cuda>()
                : capsule<Phase::forward, DeviceType::cpu>();
  });
}

}  // namespace attn::python
