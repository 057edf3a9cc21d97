#include "operations.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/dropout_mask.hpp"
#include "attn/error.hpp"
#include "attn/expr.hpp"
#include "call.hpp"
#include "kept_attribute.hpp"
#include "pytorch.hpp"

namespace attn::python {
namespace {

// (o, lse), the latter None unless lse is an array or true; with `max_logit` that too.
nb::tuple forward(const Options& options, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                  nb::handle lse, const Plan* plan, bool is_recorded, bool max_logit = false) {
  Call call(options, q, k, v, is_recorded ? Recording::done_by_caller : Recording::refused);
  Outputs outputs;
  Array o_array, lse_array, max_logit_array;
  const bool usable = call.q().tensor.rank >= 3;
  if (usable) {
    o_array = call.result("out", out, ResultType::as_like, call.o_shape());
    outputs.o = call.ordered(o_array);
    const bool wide = call.q().tensor.dtype == DType::f64;
    const ResultType of_scores = wide ? ResultType::as_like : ResultType::float32;
    if (!lse.is(Py_False)) {
      lse_array = call.result("lse", lse.is(Py_True) ? nb::handle(Py_None) : lse, of_scores,
                              call.lse_shape());
      outputs.lse = lse_array.tensor;
    }
    if (max_logit) {
      max_logit_array = call.result("max_logit", nb::none(), of_scores, {call.heads_q()});
      outputs.max_logit = max_logit_array.tensor;
    }
  }
  std::shared_ptr<const Plan> known;
  if (plan == nullptr) plan = (known = call.known_plan(Phase::forward)).get();
  std::optional<Plan> other;
  plan = &with_dropout(*plan, options.described, other);
  const Context context = call.context(*plan);
  {
    const nb::gil_scoped_release released;
    run_forward(*plan, call.inputs(), outputs, context);
  }
  if (!out.is_none()) note_written(o_array);
  if (!lse.is(Py_True) && !lse.is(Py_False)) note_written(lse_array);
  const nb::object o_result = finished(call.q(), o_array);
  const nb::object lse_result =
      outputs.lse.given() ? finished(call.q(), lse_array) : nb::object(nb::none());
  if (!max_logit) return nb::make_tuple(o_result, lse_result);
  return nb::make_tuple(o_result, lse_result, finished(call.q(), max_logit_array));
}

// The gradient of each of `wanted`: q, k, v, sink, or a buffer of the score. row_major: how those
// of q, k and v lie in memory, else as these do where PyTorch has them.
nb::tuple backward(const Options& options, nb::handle d_out, nb::handle q, nb::handle k,
                   nb::handle v, nb::handle out, nb::handle lse,
                   const std::vector<std::string_view>& wanted, nb::handle d_lse, const Plan* plan,
                   bool is_recorded, bool row_major) {
  Call call(options, q, k, v, is_recorded ? Recording::done_by_caller : Recording::refused);
  const Array d_o = call.input("d_out", d_out), o = call.input("out", out);
  const Array l = call.input("lse", lse);
  const Array d_l = d_lse.is_none() ? Array{} : call.input("d_lse", d_lse);
  std::shared_ptr<const Plan> known;
  if (plan == nullptr) plan = (known = call.known_plan(Phase::backward)).get();
  std::optional<Plan> other;
  plan = &with_dropout(*plan, options.described, other);

  Gradients gradients;
  std::vector<Array> arrays;
  arrays.reserve(wanted.size());
  const auto make = [&](const Tensor& like, ResultType type, const Tensor* order) {
    const std::vector<std::int64_t> shape(like.shape.begin(), like.shape.begin() + like.rank);
    return arrays.emplace_back(allocate(call.q(), type, shape, order));
  };
  const auto make_as = [&](const Array& input) {
    const Tensor* const order = row_major ? nullptr : &input.tensor;
    return call.ordered(make(input.tensor, ResultType::as_like, order));
  };
  for (const std::string_view name : wanted) {
    if (name == "q") {
      gradients.dq = make_as(call.q());
    } else if (name == "k") {
      gradients.dk = make_as(call.k());
    } else if (name == "v") {
      gradients.dv = make_as(call.v());
    } else if (name == "sink" && call.inputs().sink.given()) {
      gradients.dsink = make(call.inputs().sink, ResultType::float32, nullptr).tensor;
    } else {
      const Tensor& buffer = call.buffer(name).tensor;
      gradients.buffers.emplace_back(name, make(buffer, ResultType::float32, nullptr).tensor);
    }
  }
  const Context context = call.context(*plan);
  {
    const nb::gil_scoped_release released;
    run_backward(*plan, call.inputs(), {.o = call.ordered(o), .lse = l.tensor},
                 {call.ordered(d_o), d_l.tensor}, gradients, context);
  }
  nb::list results;
  for (const Array& array : arrays) results.append(finished(call.q(), array));
  return nb::tuple(results);
}

// Of torch.autograd.Function's forward: attends, and saves in `ctx` what recorded_backward() reads.
// lse is saved and no output: an output more costs a microsecond.
nb::object recorded_forward(nb::handle ctx, nb::handle options, nb::handle q, nb::handle k,
                            nb::handle v) {
  const nb::tuple results = forward(nb::cast<const Options&>(options), q, k, v, nb::none(),
                                    nb::bool_(true), nullptr, true);
  ctx.attr("to_save") = nb::make_tuple(q, k, v, results[0], results[1]);
  ctx.attr("options") = options;
  return results[0];
}

// Of its backward: (None, dq, dk, dv), of options, q, k and v.
nb::tuple recorded_backward(nb::handle ctx, nb::object d_out) {
  const nb::object options = ctx.attr("options");
  const nb::tuple saved = nb::cast<nb::tuple>(ctx.attr("saved_tensors"));
  const Tensor d_o = view("d_out", d_out).tensor;
  if (d_o.rank > 0 && d_o.strides[static_cast<std::size_t>(d_o.rank) - 1] != 1) {
    d_out = d_out.attr("contiguous")();
  }
  const nb::tuple found =
      backward(nb::cast<const Options&>(options), d_out, saved[0], saved[1], saved[2], saved[3],
               saved[4], {"q", "k", "v"}, nb::none(), nullptr, true, false);
  return nb::make_tuple(nb::none(), found[0], found[1], found[2]);
}

// How many of q, k and v are to have a gradient recorded; negative where one is no plain tensor or
// the call is to be seen as an operator.
int recorded(nb::handle q, nb::handle k, nb::handle v) {
  const bool records = pytorch::records_gradients();
  int count = 0;
  for (const nb::handle tensor : {q, k, v}) {
    if (!is_plain_tensor(tensor)) return -1;
    if (records && requires_grad(tensor)) ++count;
  }
  return pytorch::is_observed() ? -1 : count;
}

// _has_integers() of attn/options.py.
bool has_integers(PyObject* window) {
  if (window == nullptr || window == Py_None) return true;
  if (!PyTuple_CheckExact(window)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(window); ++i) {
    PyObject* const side = PyTuple_GetItem(window, i);
    if (side != Py_None && !PyLong_CheckExact(side)) return false;
  }
  return true;
}

// make_options(**keywords) of attn/options.py, whose table of known options is read here.
nb::object options_of(nb::handle keywords) {
  static constinit KeptAttribute make("attn.options", "make_options");
  static constinit KeptAttribute known("attn.options", "_KNOWN");
  const nb::object items = nb::steal(PyDict_Items(keywords.ptr()));
  Py_ssize_t at = 0;
  for (PyObject* value = nullptr; PyDict_Next(keywords.ptr(), &at, nullptr, &value) != 0;) {
    PyList_Append(items.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(value)));
  }
  const nb::object key = nb::steal(PyList_AsTuple(items.ptr()));
  if (has_integers(PyDict_GetItemString(keywords.ptr(), "window"))) {
    PyObject* const found = PyDict_GetItemWithError(known.get().ptr(), key.ptr());
    if (found != nullptr) return nb::borrow(found);
  }
  PyErr_Clear();  // an array of NumPy has no hash
  return make.get()(**nb::borrow<nb::dict>(keywords));
}

// Whether a gradient is to be recorded of one of the arrays.
bool records_any(const nb::dict& arrays) {
  if (arrays.size() == 0 || !pytorch::records_gradients()) return false;
  for (const auto [name, array] : arrays) {
    if (requires_grad(array)) return true;
  }
  return false;
}

// Whether the class of one of the arrays is to be asked.
bool asks_any(const nb::dict& arrays) {
  for (const auto [name, array] : arrays) {
    if (asks_class(array)) return true;
  }
  return false;
}

// What attn.torch.attention asks first, of a call without dropout that wants no LSE: out, where
// q, k and v are plain tensors and no gradient is recorded; the call's Options, where one is
// recorded of all three or of another array; None for the rest.
nb::object attended(nb::handle q, nb::handle k, nb::handle v, nb::dict keywords) {
  const int count = recorded(q, k, v);
  if (count != 0 && count != 3) return nb::none();
  // Before anything reads them: a class may know the operator and have no memory.
  if (asks_any(keywords)) return nb::none();
  nb::object made = options_of(keywords);
  const auto& options = nb::cast<const Options&>(made);
  if (asks_any(options.buffers)) return nb::none();
  if (count == 3 || records_any(options.tensors) || records_any(options.buffers)) return made;
  return forward(options, q, k, v, nb::none(), nb::bool_(false), nullptr, true)[0];
}

nb::tuple merge(const std::vector<std::pair<nb::object, nb::object>>& parts) {
  if (parts.empty()) {
    throw Error(ErrorCode::invalid_argument, "parts is empty; accepted is at least one (out, lse)");
  }
  std::vector<Array> arrays;
  arrays.reserve(2 * parts.size());
  std::vector<Outputs> outputs;
  DerivativeCheck check_derivative(Recording::refused);
  for (const auto& [o, lse] : parts) {
    check_derivative("out", arrays.emplace_back(view("out", o)));
    check_derivative("lse", arrays.emplace_back(view("lse", lse)));
    outputs.push_back(
        {.o = arrays[arrays.size() - 2].tensor, .lse = arrays[arrays.size() - 1].tensor});
  }
  const auto like = [&](const Array& array) {
    const Tensor& t = array.tensor;
    return allocate(array, ResultType::as_like, {t.shape.begin(), t.shape.begin() + t.rank});
  };
  const Array o = like(arrays[0]), lse = like(arrays[1]);
  Context context;
  context.stream = current_stream(arrays[0]);
  {
    const nb::gil_scoped_release released;
    attn::merge(outputs, {.o = o.tensor, .lse = lse.tensor}, context);
  }
  return nb::make_tuple(finished(arrays[0], o), finished(arrays[1], lse));
}

Plan plan(const Options& options, nb::handle q, nb::handle k, nb::handle v, bool is_backward) {
  const Call call(options, q, k, v);
  return call.plan(is_backward ? Phase::backward : Phase::forward);
}

// What is proven of the tiles of the scores of one head: a text for each block of queries, in it a
// character for each block of keys, ' ' where the mask is false all over, '#' where it is true.
std::vector<std::string> tiles(const Options& options, nb::handle q, nb::handle k, nb::handle v,
                               std::int64_t block_q, std::int64_t block_k, std::int64_t batch,
                               std::int64_t head) {
  const Call call(options, q, k, v);
  const Problem problem = call.plan(Phase::forward).problem;
  const auto check = [](std::string_view name, std::int64_t value, std::int64_t least,
                        std::int64_t end) {
    if (value >= least && value < end) return;
    throw Error(ErrorCode::invalid_argument, std::string(name) + " is " + std::to_string(value) +
                                                 "; accepted are " + std::to_string(least) +
                                                 " to " + std::to_string(end - 1));
  };
  constexpr std::int64_t kMostBlock = std::int64_t{1} << 30;
  check("block_q", block_q, 1, kMostBlock + 1);
  check("block_k", block_k, 1, kMostBlock + 1);
  check("batch", batch, 0, problem.batch);
  check("head", head, 0, problem.heads_q);
  const Inputs& inputs = call.inputs();
  for (const Tensor* lengths :
       {&inputs.cu_seqlens_q, &inputs.cu_seqlens_k, &inputs.seqused_q, &inputs.seqused_k,
        &inputs.page_table, &inputs.key_list, &inputs.prefix_k, &inputs.prefix_page_table}) {
    if (!lengths->given()) continue;
    throw Error(ErrorCode::unsupported,
                "tiles of sequences with lengths or lists of keys of their own, or with a shared "
                "prefix, are asked for; accepted are dense q, k and v");
  }
  expr::Tile t;
  t.batch = static_cast<std::int32_t>(batch);
  t.head_min = t.head_max = static_cast<std::int32_t>(head);
  t.seqlen_q = static_cast<std::int32_t>(problem.seqlen_q);
  t.seqlen_k = static_cast<std::int32_t>(problem.seqlen_k);
  std::vector<std::string> rows;
  for (std::int64_t query = 0; query < problem.seqlen_q; query += block_q) {
    t.query_min = static_cast<std::int32_t>(query);
    t.query_max = static_cast<std::int32_t>(std::min(query + block_q, problem.seqlen_q) - 1);
    std::string& row = rows.emplace_back();
    for (std::int64_t key = 0; key < problem.seqlen_k; key += block_k) {
      t.key_min = static_cast<std::int32_t>(key);
      t.key_max = static_cast<std::int32_t>(std::min(key + block_k, problem.seqlen_k) - 1);
      const auto coverage = problem.mask.empty() ? expr::Coverage::full
                                                 : expr::classify(problem.mask, t, inputs.buffers);
      row += coverage == expr::Coverage::empty ? ' ' : coverage == expr::Coverage::full ? '#' : '.';
    }
  }
  return rows;
}

// kept <- 1 where dropout keeps an element of P, else 0. rng_state: None, or where seed and offset
// stand.
void write_dropout_mask(nb::handle kept, double probability, std::uint64_t seed,
                        std::uint64_t offset, nb::handle rng_state) {
  const Array array = writable_view("kept", kept);
  const Array state = rng_state.is_none() ? Array{} : view("rng_state", rng_state);
  Problem problem;
  problem.dropout = {probability, seed, offset, state.tensor.given()};
  Context context;
  if (array.tensor.device.type == DeviceType::cpu) context.executor = executor_of(array, 0);
  context.stream = current_stream(array);
  {
    const nb::gil_scoped_release released;
    dropout_mask(problem, array.tensor, state.tensor, context);
  }
  note_written(array);
}

// "f32:8x64", as a descriptor declares a buffer.
std::string signature(std::string_view name, nb::handle object) {
  const Tensor tensor = view(name, object).tensor;
  std::string text = std::string(attn::name(tensor.dtype)) + ":";
  for (std::int32_t k = 0; k < tensor.rank; ++k) {
    if (k > 0) text += "x";
    text += std::to_string(tensor.shape[static_cast<std::size_t>(k)]);
  }
  return text;
}

// The buffers that a gradient reaches. A mask compares what it reads, and a comparison has none.
std::vector<std::string> score_buffers(const std::string& problem) {
  std::vector<std::string> names;
  for (const auto& buffer : expr::buffers(parsed(problem)->score)) names.push_back(buffer->name());
  return names;
}

}  // namespace

void bind_operations(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace): only literals
  nb::class_<Options>(module, "Options")
      .def(
          "__init__",
          [](Options* self, std::string problem, nb::dict tensors, nb::dict buffers,
             bool heads_first, std::int64_t seqlen_q, std::int64_t seqlen_k, std::uint64_t seed,
             std::uint64_t offset, std::string_view backend, std::string_view algorithm,
             int threads, bool deterministic, bool batch_invariant) {
            PlanOptions plan;
            if (backend != "auto") plan.backend = parse_backend(backend);
            if (algorithm != "auto") plan.algorithm = parse_algorithm(algorithm);
            plan.threads = threads;
            plan.deterministic = deterministic;
            plan.batch_invariant = batch_invariant;
            Described described{parsed(problem), seqlen_q, seqlen_k, seed, offset};
            new (self) Options{std::move(problem), std::move(tensors),   std::move(buffers),
                               heads_first,        std::move(described), std::move(plan)};
          },
          "problem"_a = "", "tensors"_a = nb::dict(), "buffers"_a = nb::dict(),
          "heads_first"_a = false, "seqlen_q"_a = 0, "seqlen_k"_a = 0, "seed"_a = 0, "offset"_a = 0,
          "backend"_a = "auto", "algorithm"_a = "auto", "threads"_a = 0, "deterministic"_a = false,
          "batch_invariant"_a = false)
      .def_ro("problem", &Options::problem)
      .def_ro("tensors", &Options::tensors)
      .def_ro("buffers", &Options::buffers)
      .def_prop_ro("has_arrays", &Options::has_arrays)
      .def_ro("heads_first", &Options::heads_first)
      .def_prop_ro("seqlen_q", [](const Options& self) { return self.described.seqlen_q; })
      .def_prop_ro("seqlen_k", [](const Options& self) { return self.described.seqlen_k; })
      .def_prop_ro("seed", [](const Options& self) { return self.described.seed; })
      .def_prop_ro("offset", [](const Options& self) { return self.described.offset; });
  nb::class_<Plan>(module, "Plan")
      .def("__str__", [](const Plan& self) { return to_string(self); })
      .def_ro("workspace_bytes", &Plan::workspace_bytes)
      .def_prop_ro("problem", [](const Plan& self) { return to_string(self.problem); })
      .def_prop_ro("backend", [](const Plan& self) { return std::string(name(self.backend)); })
      .def_prop_ro("algorithm", [](const Plan& self) { return std::string(name(self.algorithm)); })
      .def_prop_ro("phase", [](const Plan& self) { return std::string(name(self.phase)); })
      .def_ro("reasons", &Plan::reasons)
      .def_ro("num_splits", &Plan::num_splits)
      .def_ro("threads", &Plan::threads)
      .def("flops", &Plan::flops);
  module.def("forward", &forward, "options"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(),
             "out"_a.none(), "lse"_a, "plan"_a.none() = nb::none(), "is_recorded"_a = false,
             "max_logit"_a = false);
  module.def("backward", &backward, "options"_a, "d_out"_a.none(), "q"_a.none(), "k"_a.none(),
             "v"_a.none(), "out"_a.none(), "lse"_a.none(), "wanted"_a,
             "d_lse"_a.none() = nb::none(), "plan"_a.none() = nb::none(), "is_recorded"_a = false,
             "row_major"_a = false);
  module.def("attended", &attended, "q"_a.none(), "k"_a.none(), "v"_a.none(), "keywords"_a);
  module.def("recorded_forward", &recorded_forward, "ctx"_a, "options"_a, "q"_a, "k"_a, "v"_a);
  module.def("recorded_backward", &recorded_backward, "ctx"_a, "d_out"_a);
  module.def("plan", &plan, "options"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(), "backward"_a);
  module.def("tiles", &tiles, "options"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(), "block_q"_a,
             "block_k"_a, "batch"_a, "head"_a);
  module.def("plans_made", &plans_made);
  module.def("score_buffers", &score_buffers, "problem"_a);
  module.def("merge", &merge, "parts"_a);
  module.def("dropout_mask", &write_dropout_mask, "kept"_a, "probability"_a, "seed"_a, "offset"_a,
             "rng_state"_a.none());
  module.def("asks_class", &asks_class, "object"_a.none());
  module.def("signature", &signature, "name"_a, "array"_a);
}

}  // namespace attn::python
