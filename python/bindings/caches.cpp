// Rows in types of caches, and appending to them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/append_kv.hpp"
#include "attn/cache_type.hpp"
#include "attn/error.hpp"
#include "call.hpp"
#include "operations.hpp"

namespace attn::python {
namespace {

Tensor* member(AppendInputs& inputs, std::string_view name) {
  if (name == "q") return &inputs.q;
  if (name == "k") return &inputs.k;
  if (name == "v") return &inputs.v;
  if (name == "cu_seqlens") return &inputs.cu_seqlens;
  if (name == "seqused") return &inputs.seqused;
  if (name == "cache_seqlens") return &inputs.cache_seqlens;
  if (name == "positions") return &inputs.positions;
  if (name == "rope_positions") return &inputs.rope_positions;
  if (name == "page_table") return &inputs.page_table;
  if (name == "inv_freq") return &inputs.inv_freq;
  if (name == "cos") return &inputs.cos;
  if (name == "sin") return &inputs.sin;
  if (name == "norm_weight_q") return &inputs.norm_weight_q;
  if (name == "norm_weight_k") return &inputs.norm_weight_k;
  if (name == "scale_k") return &inputs.scale_k;
  if (name == "scale_v") return &inputs.scale_v;
  return nullptr;
}
Tensor* member(AppendOutputs& outputs, std::string_view name) {
  if (name == "q") return &outputs.q;
  if (name == "k") return &outputs.k;
  if (name == "v") return &outputs.v;
  if (name == "scale_k") return &outputs.scale_k;
  if (name == "scale_v") return &outputs.scale_v;
  return nullptr;
}

// What the caller knows a result by.
std::string written_as(std::string_view name) {
  if (name == "q") return "out_q";
  return "cache_" + std::string(name);
}

template <class Tensors>
Tensor& known_member(Tensors& tensors, const std::string& name) {
  Tensor* const known = member(tensors, name);
  if (known == nullptr) throw Error(ErrorCode::internal, "no tensor of append_kv is " + name);
  return *known;
}

// What is written to q, or None.
nb::object append(const nb::dict& read, const nb::dict& written, const AppendProblem& problem,
                  int threads) {
  AppendInputs inputs;
  AppendOutputs outputs;
  DerivativeCheck check_derivative(Recording::refused);
  std::vector<Array> kept, results;
  Array first, q, out_q;
  for (const auto [key, value] : read) {
    const auto name = nb::cast<std::string>(key);
    Array array = view(name, value);
    check_derivative(name, array);
    known_member(inputs, name) = array.tensor;
    if (name == "q") q = array;
    if (first.tensor.rank == 0) first = array;
    kept.push_back(std::move(array));
  }
  for (const auto [key, value] : written) {
    const auto name = nb::cast<std::string>(key);
    Array array = writable_view(written_as(name), value);
    check_derivative(written_as(name), array);
    known_member(outputs, name) = array.tensor;
    if (name == "q") out_q = array;
    results.push_back(std::move(array));
  }
  const bool makes_q = inputs.q.given() && !outputs.q.given();
  if (makes_q) {
    out_q = allocate(q, ResultType::as_like,
                     {inputs.q.shape.begin(), inputs.q.shape.begin() + inputs.q.rank});
    outputs.q = out_q.tensor;
  }
  Context context;
  if (first.tensor.device.type == DeviceType::cpu) context.executor = executor_of(first, threads);
  if (first.object) context.stream = current_stream(first);
  {
    const nb::gil_scoped_release released;
    append_kv(problem, inputs, outputs, context);
  }
  for (const Array& array : results) note_written(array);
  if (!inputs.q.given()) return nb::none();
  return makes_q ? finished(q, out_q) : out_q.object;
}

// One scale for all, [1], or one for each sequence and head, [..., heads], as [..., seqlen, heads].
Tensor of_each_row(const Tensor& scale, const Tensor& x, std::string_view scales) {
  const bool of_all = scales == "tensor";
  if (!of_all && scales != "head") return scale;
  const auto axes = static_cast<std::size_t>(std::max(x.rank, 1)) - 1;
  const auto without_seqlen = static_cast<std::int32_t>(axes) - 1;
  if (of_all ? scale.rank != 1 || scale.shape[0] != 1 : axes < 2 || scale.rank != without_seqlen) {
    throw Error(ErrorCode::invalid_argument,
                "scale is " + to_string(scale) + " and x is " + to_string(x) + "; accepted of " +
                    (of_all ? "scales='tensor' is f32[1]"
                            : "scales='head' is f32[..., heads], x being [..., seqlen, heads, "
                              "head_dim]"));
  }
  Tensor rows = scale;
  rows.rank = static_cast<std::int32_t>(axes);
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const bool shared = of_all || axis + 2 == axes;
    const std::size_t own = axis + 1 == axes ? axis - 1 : axis;
    rows.shape[axis] = shared ? x.shape[axis] : scale.shape[own];
    rows.strides[axis] = shared ? 0 : scale.strides[own];
  }
  return rows;
}

void quantize_rows(nb::handle x, std::string_view type, nb::handle out, nb::handle scale,
                   std::string_view of, std::int64_t block, std::optional<std::uint64_t> rotation) {
  DerivativeCheck check_derivative(Recording::refused);
  const Array from = view("x", x), to = writable_view("out", out);
  const Array scales = scale.is_none() ? Array{} : writable_view("scale", scale);
  check_derivative("x", from);
  check_derivative("out", to);
  Context context;
  context.stream = current_stream(from);
  {
    const nb::gil_scoped_release released;
    attn::quantize(from.tensor, parse_cache_type(type), to.tensor,
                   of_each_row(scales.tensor, from.tensor, of),
                   {.block = block, .rotation = rotation}, context);
  }
  note_written(to);
  if (scales.tensor.given()) note_written(scales);
}

}  // namespace

void bind_caches(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace): only literals
  module.def("quantize", &quantize_rows, "x"_a, "type"_a, "out"_a, "scale"_a.none(), "scales"_a,
             "block"_a, "rotation"_a.none());
  module.def(
      "append_kv",
      [](const nb::dict& read, const nb::dict& written, std::string_view type_k,
         std::string_view type_v, std::string_view rope_pairs, double norm_eps, bool ring,
         bool norm, bool hadamard, bool hadamard_v, std::string_view backend, int threads) {
        AppendProblem problem;
        problem.type_k = parse_cache_type(type_k);
        problem.type_v = parse_cache_type(type_v);
        problem.rope_pairs = parse_rope_pairs(rope_pairs);
        if (backend != "auto") problem.backend = parse_backend(backend);
        problem.norm_eps = norm_eps;
        problem.ring = ring;
        problem.norm = norm;
        problem.hadamard = hadamard;
        problem.hadamard_v = hadamard_v;
        return append(read, written, problem, threads);
      },
      "read"_a, "written"_a, "type_k"_a, "type_v"_a, "rope_pairs"_a, "norm_eps"_a, "ring"_a,
      "norm"_a, "hadamard"_a, "hadamard_v"_a, "backend"_a, "threads"_a);
}

}  // namespace attn::python
