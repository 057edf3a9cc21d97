#include "cuda/backward/source.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "cuda/forward/source.hpp"
#include "cuda/jit/config_text.hpp"
#include "cuda/jit/expression_gradients.hpp"
#include "cuda/jit/expression_text.hpp"
#include "cuda/limits.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

std::string_view word(Gradient gradient) {
  switch (gradient) {
    case Gradient::dq:
      return "dq";
    case Gradient::dk:
      return "dk";
    case Gradient::dv:
      return "dv";
    case Gradient::dk_dv:
      return "dk_dv";
    case Gradient::buffers:
      return "buffers";
  }
  return {};
}

std::string print_config(const BackwardConfig& c) {
  ConfigText text(c.dtype);
  text.constant("Gradient", "kGradient", fmt::format("Gradient::{}", word(c.gradient)));
  text.number("kHeadDim", c.head_dim);
  text.number("kHeadDimV", c.head_dim_v);
  text.number("kBlockM", c.block_m);
  text.number("kBlockN", c.block_n);
  text.number("kWarps", c.warps);
  text.number("kStages", c.stages);
  text.flag("kPackedQ", c.packed_q);
  text.flag("kPackedK", c.packed_k);
  text.flag("kUsedQ", c.used_q);
  text.flag("kUsedK", c.used_k);
  text.flag("kDropout", c.dropout);
  return text.text();
}

std::string kernel_name(const BackwardConfig& config) {
  return fmt::format("{}_{}", name(config.kernel), word(config.gradient));
}

constexpr std::string_view kIncludes =
    "#include \"params.cuh\"\n#include \"tile/coverage.cuh\"\n#include \"ptx/math.cuh\"\n";

}  // namespace

int backward_precise_math(const BackwardConfig& config) noexcept {
  constexpr int kPrecise = 2;
  return config.kernel == BackwardKernel::simt ? kPrecise : precise_math(config.dtype);
}

void check_backward_parameters(const Problem& problem, const BackwardConfig& config,
                               const std::vector<std::string>& names) {
  const std::size_t bytes =
      sizeof(device::BackwardParams) + expressions_bytes(problem.mask, score_expression(problem)) +
      (config.gradient == Gradient::buffers ? buffer_gradients_bytes(problem.score, names)
                                            : slope_bytes(problem.score));
  check_parameters(problem, kernel_name(config), static_cast<std::int64_t>(bytes));
}

Source backward_source(const Problem& problem, const BackwardConfig& config,
                       const std::vector<std::string>& names, const expr::Bindings& bindings) {
  check_backward_parameters(problem, config, names);
  const bool buffers = config.gradient == Gradient::buffers;
  Source source;
  source.name = kernel_name(config);
  source.entry = "attn_backward";
  source.allowed_spill_bytes = config.allowed_spill_bytes;
  source.text =
      fmt::format("#define ATTN_PRECISE_MATH {}\n{}", backward_precise_math(config), kIncludes);
  source.text += print_expressions(problem.mask, score_expression(problem), bindings);
  source.text += buffers ? print_buffer_gradients(problem.score, names, bindings)
                         : print_slope(problem.score, bindings);
  source.text += "namespace attn::device {\n" + print_config(config) + "}\n";
  source.text += fmt::format(
      "#include \"kernels/{0}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({1}, 1)\n"
      "attn_backward(const __grid_constant__ attn::device::BackwardParams p,\n"
      "              const __grid_constant__ attn::device::Expressions e,\n"
      "              const __grid_constant__ attn::device::{2} derivatives) {{\n"
      "  attn::device::{0}<attn::device::Config>(p, e, derivatives);\n"
      "}}\n",
      name(config.kernel), config.threads(), buffers ? "BufferGradients" : "Slope");
  return source;
}

Source backward_rows_source(const BackwardConfig& config) {
  Source source;
  source.name = "backward_rows";
  source.entry = "attn_backward_rows";
  source.text = fmt::format("{}namespace attn::device {{\n{}}}\n", kIncludes, print_config(config));
  source.text +=
      "#include \"kernels/backward_rows.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(128)\n"
      "attn_backward_rows(const __grid_constant__ attn::device::BackwardParams p) {\n"
      "  attn::device::backward_rows<attn::device::Config>(p);\n"
      "}\n";
  return source;
}

Source backward_sink_source() {
  Source source;
  source.name = "backward_sink";
  source.entry = "attn_backward_sink";
  source.text =
      "#include \"kernels/backward_sink.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(1024)\n"
      "attn_backward_sink(const __grid_constant__ attn::device::BackwardParams p) {\n"
      "  attn::device::backward_sink(p);\n"
      "}\n";
  return source;
}

Source backward_clear_source() {
  Source source;
  source.name = "backward_clear";
  source.entry = "attn_backward_clear";
  source.text =
      "#include \"kernels/backward_buffers.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(256)\n"
      "attn_backward_clear(double* sums, long long size) {\n"
      "  attn::device::clear_sums(sums, size);\n"
      "}\n";
  return source;
}

Source backward_store_source() {
  Source source;
  source.name = "backward_store";
  source.entry = "attn_backward_store";
  source.text =
      "#include \"kernels/backward_buffers.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(256)\n"
      "attn_backward_store(const __grid_constant__ attn::device::BufferGradientParams p) {\n"
      "  attn::device::store_buffer_gradient(p);\n"
      "}\n";
  return source;
}

}  // namespace attn::cuda
