// attn.dist: one sequence over the processes of a group, whose messages Python carries.
#include "attn/dist.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "call.hpp"
#include "operations.hpp"

namespace attn::python {
namespace {

// PyBUF_READ and PyBUF_WRITE, which headers of the stable ABI have from 3.11 on.
constexpr int kRead = 0x100, kWrite = 0x200;

// An object of Python carries the messages: exchange(sends, receives, seconds) gets lists of
// (rank, memoryview), or (rank, (device, address, bytes)) of a GPU's memory, and fail(cause).
class PythonEngine : public dist::Engine {
 public:
  PythonEngine(nb::object engine, int rank, int size, bool carries_gpu)
      : engine_(std::move(engine)), rank_(rank), size_(size), carries_gpu_(carries_gpu) {}
  PythonEngine(const PythonEngine&) = delete;
  PythonEngine& operator=(const PythonEngine&) = delete;
  ~PythonEngine() override {
    if (Py_IsInitialized() == 0) {
      static_cast<void>(engine_.release());
      return;
    }
    const nb::gil_scoped_acquire acquired;
    engine_.reset();
  }

  std::string_view name() const noexcept override { return "torch.distributed"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  bool carries(Device device) const noexcept override {
    return device.type == DeviceType::cpu || carries_gpu_;
  }

  void exchange(std::span<const dist::Send> sends, std::span<const dist::Receive> receives,
                std::chrono::milliseconds timeout) override {
    const nb::gil_scoped_acquire acquired;
    try {
      nb::list to, from;
      for (const dist::Send& send : sends) {
        to.append(nb::make_tuple(
            send.to, memory(const_cast<void*>(send.data), send.bytes, send.device, kRead)));
      }
      for (const dist::Receive& receive : receives) {
        from.append(nb::make_tuple(receive.from,
                                   memory(receive.data, receive.bytes, receive.device, kWrite)));
      }
      engine_.attr("exchange")(to, from, 1e-3 * static_cast<double>(timeout.count()));
    } catch (nb::python_error& error) {
      throw Error(ErrorCode::unavailable, nb::str(error.value()).c_str());
    }
  }
  void fail(const std::string& cause) noexcept override {
    const nb::gil_scoped_acquire acquired;
    try {
      engine_.attr("fail")(cause);
    } catch (...) {  // the others' time-outs tell them
    }
  }

 private:
  static nb::object memory(void* data, std::size_t bytes, Device device, int access) {
    if (device.type != DeviceType::cpu) {
      return nb::make_tuple(device.index, reinterpret_cast<std::uintptr_t>(data), bytes);
    }
    static char nothing = 0;
    return nb::steal(PyMemoryView_FromMemory(bytes == 0 ? &nothing : static_cast<char*>(data),
                                             static_cast<Py_ssize_t>(bytes), access));
  }

  nb::object engine_;
  int rank_, size_;
  bool carries_gpu_;
};

// Buffers of mask and score by name, numbers among them in memory of its own.
class Buffers {
 public:
  explicit Buffers(const nb::dict& buffers) {
    for (const auto [key, value] : buffers) {
      auto name = nb::cast<std::string>(key);
      if (nb::isinstance<nb::float_>(value)) {
        bindings_.emplace_back(name, tensor(&floats_.emplace_back(nb::cast<float>(value)), {}));
      } else if (nb::isinstance<nb::int_>(value)) {
        bindings_.emplace_back(name,
                               tensor(&integers_.emplace_back(nb::cast<std::int32_t>(value)), {}));
      } else {
        bindings_.emplace_back(name, arrays_.emplace_back(view(name, value)).tensor);
      }
    }
  }
  const expr::Bindings& bindings() const { return bindings_; }

 private:
  expr::Bindings bindings_;
  std::list<Array> arrays_;
  std::list<float> floats_;
  std::list<std::int32_t> integers_;
};

struct DistPlan {
  std::shared_ptr<const Buffers> buffers;  // as long as the plan
  dist::Plan plan;
  std::chrono::milliseconds timeout;
};

std::vector<std::int32_t> numbers(std::string_view name, const nb::dict& tensors) {
  const nb::str key(name.data(), name.size());
  if (!tensors.contains(key)) return {};
  const Tensor t = view(name, tensors[key]).tensor;
  const bool wide = t.dtype == DType::i64;
  if ((!wide && t.dtype != DType::i32) || t.rank != 1 || t.device.type != DeviceType::cpu ||
      (t.strides[0] != 1 && t.shape[0] > 1)) {
    throw Error(ErrorCode::invalid_argument, std::string(name) + " is " + to_string(t) +
                                                 "; accepted is i32 or i64 [n] on the CPU");
  }
  std::vector<std::int32_t> numbers;
  for (std::int64_t i = 0; i < t.shape[0]; ++i) {
    const std::int64_t number = wide ? static_cast<const std::int64_t*>(t.data)[i]
                                     : static_cast<const std::int32_t*>(t.data)[i];
    if (number != static_cast<std::int32_t>(number)) {
      throw Error(ErrorCode::invalid_argument,
                  std::string(name) + " has " + std::to_string(number) +
                      "; accepted are numbers of 32 bits, 0 to 2^31 - 1");
    }
    numbers.push_back(static_cast<std::int32_t>(number));
  }
  return numbers;
}

// A tensor of which only shape and dtype are asked.
Tensor described_tensor(std::string_view name, const std::vector<std::int64_t>& shape,
                        DType dtype) {
  if (shape.empty() || shape.size() > kMaxRank) {
    throw Error(ErrorCode::invalid_argument, std::string(name) + " has " +
                                                 std::to_string(shape.size()) +
                                                 " dimensions; accepted are 3 and 4");
  }
  static std::int64_t nothing = 0;
  Tensor t;
  t.data = &nothing;
  t.dtype = dtype;
  t.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
    t.shape[d] = shape[d];
    t.strides[d] = stride;
  }
  return t;
}

DistPlan make_plan(const Options& options, const std::vector<std::int64_t>& q,
                   const std::vector<std::int64_t>& k, const std::vector<std::int64_t>& v,
                   std::string_view dtype, int gpu, const std::optional<nb::object>& engine,
                   int rank, int size, bool carries_gpu, std::string_view deal, std::int64_t chunk,
                   double timeout) {
  const DType type = parse_dtype(dtype);
  Inputs inputs{.q = described_tensor("q", q, type),
                .k = described_tensor("k", k, type),
                .v = described_tensor("v", v, type)};
  dist::Options how;
  how.deal = dist::parse_deal(deal);
  how.chunk = chunk;
  how.local = options.plan;
  if (gpu >= 0) how.local.device = {DeviceType::cuda, gpu};
  how.lengths = {.cu_seqlens_q = numbers("cu_seqlens_q", options.tensors),
                 .cu_seqlens_k = numbers("cu_seqlens_k", options.tensors),
                 .seqused_q = numbers("seqused_q", options.tensors),
                 .seqused_k = numbers("seqused_k", options.tensors)};
  const auto lengths_of = [](const std::vector<std::int32_t>& values) {
    return values.empty() ? Tensor{}
                          : tensor(values.data(), {static_cast<std::int64_t>(values.size())});
  };
  inputs.cu_seqlens_q = lengths_of(how.lengths.cu_seqlens_q);
  inputs.cu_seqlens_k = lengths_of(how.lengths.cu_seqlens_k);
  inputs.seqused_q = lengths_of(how.lengths.seqused_q);
  inputs.seqused_k = lengths_of(how.lengths.seqused_k);
  std::list<Array> kept;
  for (const char* name : {"sink", "rng_state"}) {
    if (!options.tensors.contains(name)) continue;
    *member(inputs, name) = kept.emplace_back(view(name, options.tensors[name])).tensor;
  }
  auto buffers = std::make_shared<const Buffers>(options.buffers);
  how.buffers = inputs.buffers = buffers->bindings();
  // Of tensors on a GPU only shape and dtype are asked here, beside lengths on the CPU.
  for (Tensor* t : {&inputs.sink, &inputs.rng_state}) t->device = {};
  for (auto& [name, buffer] : inputs.buffers) buffer.device = {};
  const Problem problem = complete(options.described, inputs);
  if (problem.type_o.given() || problem.type_q != CacheType::as_q ||
      problem.type_k != CacheType::as_q || problem.type_v != CacheType::as_q) {
    throw Error(ErrorCode::unsupported,
                "the problem is " + to_string(problem) +
                    "; accepted by attn.dist are Q, K, V and O of one dtype");
  }
  dist::Context context;
  context.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * timeout));
  if (!engine) return {buffers, dist::make_plan(problem, size, how), context.timeout};
  const dist::Group group(std::make_shared<PythonEngine>(*engine, rank, size, carries_gpu));
  const nb::gil_scoped_release released;
  return {buffers, dist::make_plan(problem, group, how, context), context.timeout};
}

// The tensors of a rank's call.
class RankCall {
 public:
  RankCall(const DistPlan& plan, const Options& options, nb::handle q, nb::handle k, nb::handle v)
      : buffers_(options.buffers), q_(view("q", q)), k_(view("k", k)), v_(view("v", v)) {
    inputs_ = {.q = q_.tensor, .k = k_.tensor, .v = v_.tensor};
    inputs_.buffers = buffers_.bindings();
    for (const char* name : {"sink", "rng_state"}) {
      if (!options.tensors.contains(name)) continue;
      *member(inputs_, name) = kept_.emplace_back(view(name, options.tensors[name])).tensor;
    }
    context_.timeout = plan.timeout;
    if (q_.tensor.device.type == DeviceType::cpu) {
      context_.local.executor = executor_of(q_, options.plan.threads);
    }
    context_.local.stream = current_stream(q_);
  }

  const Inputs& inputs() const { return inputs_; }
  const dist::Context& context() const { return context_; }
  const Array& q() const { return q_; }
  const Array& k() const { return k_; }
  const Array& v() const { return v_; }

 private:
  Buffers buffers_;
  Array q_, k_, v_;
  std::list<Array> kept_;
  Inputs inputs_;
  dist::Context context_;
};

// (o, lse), and with `max_logit` that too.
nb::tuple forward(const DistPlan& plan, const Options& options, nb::handle q, nb::handle k,
                  nb::handle v, bool max_logit) {
  const RankCall call(plan, options, q, k, v);
  const Tensor& t = call.q().tensor;
  if (t.rank < 3 || call.v().tensor.rank < 3) {
    throw Error(ErrorCode::invalid_argument,
                "q is " + to_string(t) +
                    "; accepted is [batch, rows, heads, head_dim] or, packed, "
                    "[rows, heads, head_dim]");
  }
  std::vector<std::int64_t> shape(t.shape.begin(), t.shape.begin() + t.rank);
  shape.back() = call.v().tensor.shape[static_cast<std::size_t>(call.v().tensor.rank - 1)];
  const Array o = allocate(call.q(), ResultType::as_like, shape);
  const auto of_lse = t.rank == 3 ? std::vector<std::int64_t>{t.shape[1], t.shape[0]}
                                  : std::vector<std::int64_t>{t.shape[0], t.shape[2], t.shape[1]};
  const ResultType of_scores = t.dtype == DType::f64 ? ResultType::as_like : ResultType::float32;
  const Array lse = allocate(call.q(), of_scores, of_lse);
  Array largest;
  Outputs outputs{.o = o.tensor, .lse = lse.tensor};
  if (max_logit) {
    largest = allocate(call.q(), of_scores, {t.shape[static_cast<std::size_t>(t.rank - 2)]});
    outputs.max_logit = largest.tensor;
  }
  {
    const nb::gil_scoped_release released;
    dist::forward(plan.plan, call.inputs(), outputs, call.context());
  }
  nb::object o_result = finished(call.q(), o), lse_result = finished(call.q(), lse);
  if (!max_logit) return nb::make_tuple(o_result, lse_result);
  return nb::make_tuple(o_result, lse_result, finished(call.q(), largest));
}

// The gradient of each of `wanted`: q, k, v, sink, or a buffer of the score.
nb::tuple backward(const DistPlan& plan, const Options& options, nb::handle d_out, nb::handle q,
                   nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                   const std::vector<std::string>& wanted, nb::handle d_lse) {
  const RankCall call(plan, options, q, k, v);
  const Array d_o = view("d_out", d_out), o = view("out", out), l = view("lse", lse);
  const Array d_l = d_lse.is_none() ? Array{} : view("d_lse", d_lse);
  Gradients gradients;
  std::vector<Array> arrays;
  arrays.reserve(wanted.size());
  const auto make = [&](const Tensor& like, ResultType type) {
    const std::vector<std::int64_t> shape(like.shape.begin(), like.shape.begin() + like.rank);
    return arrays.emplace_back(allocate(call.q(), type, shape)).tensor;
  };
  for (const std::string& name : wanted) {
    if (name == "q") {
      gradients.dq = make(call.q().tensor, ResultType::as_like);
    } else if (name == "k") {
      gradients.dk = make(call.k().tensor, ResultType::as_like);
    } else if (name == "v") {
      gradients.dv = make(call.v().tensor, ResultType::as_like);
    } else if (name == "sink") {
      gradients.dsink = make(call.inputs().sink, ResultType::float32);
    } else {
      for (const auto& [known, buffer] : call.inputs().buffers) {
        if (known == name) {
          gradients.buffers.emplace_back(name, make(buffer, ResultType::float32));
        }
      }
    }
  }
  if (arrays.size() != wanted.size()) {
    throw Error(ErrorCode::invalid_argument,
                "a gradient is asked of what is not given; accepted are q, k, v, sink and the "
                "buffers of the score");
  }
  {
    const nb::gil_scoped_release released;
    dist::backward(plan.plan, call.inputs(), {.o = o.tensor, .lse = l.tensor},
                   {d_o.tensor, d_l.tensor}, gradients, call.context());
  }
  nb::list results;
  for (const Array& array : arrays) results.append(finished(call.q(), array));
  return nb::tuple(results);
}

using RowPairs = std::vector<std::pair<std::int64_t, std::int64_t>>;

RowPairs pairs(const std::vector<dist::Rows>& list) {
  RowPairs rows;
  for (const dist::Rows& range : list) rows.emplace_back(range.begin, range.end);
  return rows;
}

}  // namespace

void bind_dist(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace): only literals
  nb::class_<DistPlan>(module, "DistPlan")
      .def("__str__", [](const DistPlan& self) { return dist::to_string(self.plan); })
      .def_prop_ro("problem", [](const DistPlan& self) { return to_string(self.plan.problem()); })
      .def_prop_ro("rank", [](const DistPlan& self) { return self.plan.rank(); })
      .def_prop_ro("ranks", [](const DistPlan& self) { return self.plan.ranks(); })
      .def_prop_ro("balance", [](const DistPlan& self) { return self.plan.balance(); })
      .def(
          "rows", [](const DistPlan& self, int rank) { return pairs(self.plan.rows(rank)); },
          "rank"_a)
      .def(
          "keys", [](const DistPlan& self, int rank) { return pairs(self.plan.keys(rank)); },
          "rank"_a)
      .def(
          "area", [](const DistPlan& self, int rank) { return self.plan.area(rank); }, "rank"_a)
      .def(
          "bytes",
          [](const DistPlan& self, int from, int to, bool is_backward) {
            return self.plan.bytes(from, to, is_backward ? Phase::backward : Phase::forward);
          },
          "sender"_a, "receiver"_a, "backward"_a);
  module.def("dist_plan", &make_plan, "options"_a, "q"_a, "k"_a, "v"_a, "dtype"_a, "gpu"_a,
             "engine"_a.none(), "rank"_a, "size"_a, "carries_gpu"_a, "deal"_a, "chunk"_a,
             "timeout"_a);
  module.def("dist_forward", &forward, "plan"_a, "options"_a, "q"_a, "k"_a, "v"_a,
             "max_logit"_a = false);
  module.def("dist_backward", &backward, "plan"_a, "options"_a, "d_out"_a, "q"_a, "k"_a, "v"_a,
             "out"_a, "lse"_a, "wanted"_a, "d_lse"_a.none());
}

}  // namespace attn::python
