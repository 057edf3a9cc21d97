#include "command/run_results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "attn/error.hpp"
#include "core/cache_type.hpp"
#include "io/file.hpp"
#include "io/npy.hpp"
#include "io/output_file.hpp"
#include "io/safetensors.hpp"

namespace attn::command {
namespace {

std::vector<std::int64_t> shape(const Tensor& t) {
  return {t.shape.begin(), t.shape.begin() + t.rank};
}

Tensor without_batch(const Tensor& tensor, bool batchless) {
  if (!batchless) return tensor;
  Tensor result = tensor;
  --result.rank;
  std::copy(tensor.shape.begin() + 1, tensor.shape.end(), result.shape.begin());
  std::copy(tensor.strides.begin() + 1, tensor.strides.end(), result.strides.begin());
  return result;
}

bool is_npy(const std::string& path) { return path.ends_with(".npy"); }

}  // namespace

RunResults::RunResults(const RunProblem& read, bool backward, bool max_logit) {
  const Problem& problem = read.problem;
  const Inputs& inputs = read.inputs;
  std::vector<std::int64_t> shape_o = shape(inputs.q);
  shape_o.back() = problem.head_dim_v;
  outputs.o = keep(core::type_of_o(problem), shape_o);
  const DType lse = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
  outputs.lse = problem.layout_q == Layout::packed
                    ? keep(lse, {problem.heads_q, inputs.q.shape[0]})
                    : keep(lse, {problem.batch, problem.heads_q, problem.seqlen_q});
  if (max_logit) outputs.max_logit = keep(lse, {problem.heads_q});
  if (!backward) return;
  gradients.dq = keep(problem.dtype, shape(inputs.q));
  gradients.dk = keep(problem.dtype, shape(inputs.k));
  gradients.dv = keep(problem.dtype, shape(inputs.v));
  if (problem.sink) gradients.dsink = keep(DType::f32, shape(inputs.sink));
  if (problem.score.empty()) return;
  for (const auto& buffer : expr::buffers(problem.score)) {
    if (!is_floating(buffer->tensor().dtype) || buffer->tensor().rank == 0) continue;
    for (const auto& [name, tensor] : inputs.buffers) {
      if (name != buffer->name()) continue;
      gradients.buffers.emplace_back(name, keep(DType::f32, shape(tensor)));
    }
  }
}

Tensor RunResults::keep(DType dtype, const std::vector<std::int64_t>& shape) {
  const io::Array& array = arrays_.emplace_back(dtype, shape);
  std::memset(array.data(), 0xff, array.bytes());
  return array.tensor();
}

NamedTensors RunResults::named(const RunProblem& read, bool with_lse) const {
  NamedTensors tensors{{"o", without_batch(outputs.o, read.batchless_q)}};
  if (with_lse) tensors.emplace_back("lse", without_batch(outputs.lse, read.batchless_q));
  if (outputs.max_logit.given()) tensors.emplace_back("max_logit", outputs.max_logit);
  if (!gradients.dq.given()) return tensors;
  tensors.emplace_back("dq", without_batch(gradients.dq, read.batchless_q));
  tensors.emplace_back("dk", without_batch(gradients.dk, read.batchless_k));
  tensors.emplace_back("dv", without_batch(gradients.dv, read.batchless_v));
  if (gradients.dsink.given()) tensors.emplace_back("dsink", gradients.dsink);
  for (const auto& [name, tensor] : gradients.buffers) tensors.emplace_back("d" + name, tensor);
  return tensors;
}

void check_results(const std::string& path, const NamedTensors& tensors) {
  if (path.empty()) return;
  io::OutputFile::check(path);
  if (is_npy(path)) {
    if (tensors.size() > 1) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("--output is {}, which holds one tensor, but {} are written with --lse, "
                      "--max-logit or --backward; a safetensors file is accepted",
                      io::printable(path), tensors.size()));
    }
    io::check_npy(path, tensors.front().second.dtype);
  }
  for (auto named = tensors.begin(); named != tensors.end(); ++named) {
    if (std::any_of(tensors.begin(), named,
                    [&](const auto& other) { return other.first == named->first; })) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--backward writes two tensors named {}; accepted are names of "
                              "buffers whose gradients have names of their own",
                              named->first));
    }
  }
}

void write_results(const std::string& path, const NamedTensors& tensors) {
  if (is_npy(path)) {
    io::write_npy(path, tensors.front().second);
  } else {
    io::write_safetensors(path, tensors);
  }
}

}  // namespace attn::command
