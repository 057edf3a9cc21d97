#include "cuda/backward/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "cuda/codegen/buffer_gradients.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/expression_gradients.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/kernels/backward_one_pass/sizes.hpp"
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
    case Gradient::all:
      return "all";
    case Gradient::buffers:
      return "buffers";
    case Gradient::ds:
      return "ds";
  }
  return {};
}

// Constants that every backward kernel has, and its own. stored: of the elements of the gradient,
// where the kernel stores one.
ConfigText config_text(const BackwardConfig& c, std::optional<DType> stored = {}) {
  const BackwardFeatures& f = c.features;
  ConfigText text(f.dtype);
  if (stored) text.type("Stored", element_type(*stored));
  text.constant("Gradient", "kGradient", fmt::format("Gradient::{}", word(c.gradient)));
  text.number("kHeadDim", f.head_dim);
  text.number("kHeadDimV", f.head_dim_v);
  text.number("kBlockM", c.tiling.block_m);
  text.number("kBlockN", c.tiling.block_n);
  text.number("kWarps", c.tiling.warps);
  text.number("kStages", c.tiling.stages);
  text.flag("kPackedQ", f.packed_q);
  text.flag("kPackedK", f.packed_k);
  text.flag("kUsedQ", f.used_q);
  text.flag("kUsedK", f.used_k);
  text.flag("kKeyList", f.key_list);
  text.number("kWide", static_cast<int>(f.wide));
  text.flag("kDropout", f.dropout);
  text.flag("kRngState", f.rng_state);
  text.flag("kScoreHides", f.score_hides);
  text.flag("kFarRows", f.far_rows);
  text.number("kSharedBytes", static_cast<int>(c.tiling.shared_bytes));
  if (c.shape != nullptr) c.shape->print(c, text);
  return text;
}

std::string kernel_name(const BackwardConfig& config) {
  const bool gives_one = config.gradient == Gradient::all || config.kernel->launches == nullptr;
  if (gives_one) return std::string(config.kernel->name);
  return fmt::format("{}_{}", config.kernel->name, word(config.gradient));
}

// Types of the lengths and starts of sequences, in Q alone and in all.
constexpr unsigned kWideOfQ = device::kWideCuSeqlensQ | device::kWideSequsedQ;
constexpr unsigned kWideLengths = kWideOfQ | device::kWideCuSeqlensK | device::kWideSequsedK;

// The Config of a small kernel beside that of a gradient: of the constants, those that it reads.
std::string small_config(BackwardConfig config, unsigned wide,
                         const std::vector<std::string_view>& names) {
  config.features.wide &= wide;
  return "namespace attn::device {\n" + config_text(config).text_of(names) + "}\n";
}

// The same before and after a kernel of one pass, which go place by place.
std::string config_of_places(BackwardConfig config, std::vector<std::string_view> names) {
  config.tiling.block_n = kPlaceQueries;
  names.insert(names.end(),
               {"Element", "kHeadDim", "kBlockN", "kPackedQ", "kUsedQ", "kWide", "kOrdered"});
  if (config.ordered) names.insert(names.end(), {"kMaskHeads", "kMaskBatches"});
  return small_config(std::move(config), kWideOfQ, names);
}

constexpr std::string_view kIncludes =
    "#include \"params.cuh\"\n#include \"tile/coverage.cuh\"\n#include \"ptx/math.cuh\"\n";

}  // namespace

int backward_precise_math(const BackwardKernel& kernel, DType dtype) noexcept {
  constexpr int kPrecise = 2;
  return kernel.scalar ? kPrecise : precise_math(dtype);
}

void check_backward_parameters(const Problem& problem, const BackwardConfig& config,
                               const std::vector<std::string>& names) {
  const std::size_t maps =
      config.kernel->maps != nullptr ? sizeof(BackwardMaps) + alignof(BackwardMaps) : 0;
  const std::size_t bytes =
      sizeof(device::BackwardParams) + maps +
      expressions_bytes(problem.mask, score_expression(problem)) +
      (config.gradient == Gradient::buffers ? buffer_gradients_bytes(problem.score, names)
                                            : slope_bytes(problem.score));
  check_parameters(problem, kernel_name(config), static_cast<std::int64_t>(bytes));
}

Source backward_source(const Problem& problem, const BackwardConfig& config,
                       const std::vector<std::string>& names, const PrintedBuffers& printed) {
  check_backward_parameters(problem, config, names);
  const bool buffers = config.gradient == Gradient::buffers;
  Source source;
  const bool maps = config.kernel->maps != nullptr;
  source.name = kernel_name(config);
  source.entry = "attn_backward";
  source.allowed_spill_bytes = config.tiling.spill_bytes;
  constexpr std::int64_t kShort = 1 << 20;
  const bool is_short = std::max(problem.seqlen_q, problem.seqlen_k) <= kShort;
  if (is_short) source.text += "#define ATTN_SHORT_SEQUENCES 1\n";
  source.text +=
      fmt::format("#define ATTN_PRECISE_MATH {}\n{}",
                  backward_precise_math(*config.kernel, config.features.dtype), kIncludes);
  source.text += print_expressions(problem.mask, score_expression(problem), printed, is_short);
  // On tensor cores the digits that the shorter form loses are beyond those of 16-bit products,
  // unless every score of a row is saturated (docs/numerics.md, "Extremes").
  const auto form =
      config.kernel->scalar ? expr::TanhSlope::exponentials : expr::TanhSlope::squares;
  source.text +=
      buffers ? print_buffer_gradients(problem.score, names, config.buffers.exact_sums, printed)
              : print_slope(problem.score, form, printed);
  const bool floats = config.features.float_sums && config.gradient != Gradient::dq;
  source.text += "namespace attn::device {\n" +
                 config_text(config, floats ? DType::f32 : config.features.dtype).text();
  if (config.shape != nullptr) source.text += config.shape->declarations(config);
  source.text += "}\n";
  source.text += fmt::format(
      "#include \"kernels/{0}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({1}, 1)\n"
      "attn_backward(const __grid_constant__ attn::device::BackwardParams p,\n"
      "              const __grid_constant__ attn::device::Expressions e,\n"
      "              const __grid_constant__ attn::device::{2} derivatives{3}) {{\n"
      "  attn::device::{0}<attn::device::Config>(p, e, derivatives{4});\n"
      "}}\n",
      config.kernel->name, config.tiling.threads(), buffers ? "BufferGradients" : "Slope",
      maps ? ",\n              const __grid_constant__ attn::device::BackwardMaps maps" : "",
      maps ? ", maps" : "");
  return source;
}

Source backward_one_pass_rows_source(const BackwardConfig& config, bool aligned_o) {
  Source source;
  source.name = "backward_one_pass_rows";
  source.entry = "attn_backward_rows";
  source.text =
      std::string(kIncludes) + config_of_places(config, {"kHeadDimV", "kRowThreads", "kFarRows"});
  source.text += fmt::format(
      "#include \"kernels/backward_one_pass_rows.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(256)\n"
      "attn_backward_rows(const __grid_constant__ attn::device::BackwardParams p) {{\n"
      "  attn::device::backward_one_pass_rows<attn::device::Config, {}>(p);\n"
      "}}\n",
      aligned_o);
  return source;
}

Source backward_words_source(const Problem& problem, const BackwardConfig& config,
                             const PrintedBuffers& printed) {
  Source source;
  source.name = config.kernel->query_words;
  source.entry = "attn_backward_words";
  source.text = kIncludes;
  source.text += print_classifier(problem.mask, printed);
  std::vector<std::string_view> names{"kGradient",   "kBlockM",    "kBlockN",      "kPackedQ",
                                      "kPackedK",    "kUsedQ",     "kUsedK",       "kWide",
                                      "kScoreHides", "kMaskHeads", "kMaskBatches", "kOrdered"};
  if (config.ordered) names.emplace_back("kHeadDim");
  source.text += small_config(config, kWideLengths, names);
  source.text += fmt::format(
      "#include \"kernels/{0}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(128)\n"
      "attn_backward_words(const __grid_constant__ attn::device::BackwardParams p,\n"
      "                    const __grid_constant__ attn::device::Expressions e) {{\n"
      "  attn::device::{0}<attn::device::Config>(p, e);\n"
      "}}\n",
      config.kernel->query_words);
  return source;
}

Source backward_one_pass_dq_source(const BackwardConfig& config) {
  Source source;
  source.name = "backward_one_pass_dq";
  source.entry = "attn_backward_dq";
  source.text = std::string(kIncludes) + config_of_places(config, {"kPieceColumns", "kScalesLate"});
  source.text +=
      "#include \"kernels/backward_one_pass_dq.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(128)\n"
      "attn_backward_dq(const __grid_constant__ attn::device::BackwardParams p) {\n"
      "  attn::device::backward_one_pass_dq<attn::device::Config>(p);\n"
      "}\n";
  return source;
}

Source backward_rows_source(const BackwardConfig& config) {
  Source source;
  source.name = "backward_rows";
  source.entry = "attn_backward_rows";
  source.text =
      std::string(kIncludes) +
      small_config(config, kWideOfQ, {"Element", "kHeadDimV", "kPackedQ", "kUsedQ", "kWide"});
  source.text +=
      "#include \"kernels/backward_rows.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(128)\n"
      "attn_backward_rows(const __grid_constant__ attn::device::BackwardParams p) {\n"
      "  attn::device::backward_rows<attn::device::Config>(p);\n"
      "}\n";
  return source;
}

Source backward_far_rows_source(const Problem& problem, BackwardConfig config,
                                const PrintedBuffers& printed) {
  Source source;
  source.name = "backward_far_rows";
  source.entry = "attn_backward_far_rows";
  source.text =
      fmt::format("#define ATTN_PRECISE_MATH {}\n{}",
                  backward_precise_math(*config.kernel, config.features.dtype), kIncludes);
  source.text += print_expressions(problem.mask, score_expression(problem), printed);
  config.gradient = Gradient::dq;  // rows are of Q, whatever the launches
  source.text += small_config(std::move(config), kWideLengths | device::kWideKeyLists,
                              {"Element", "kGradient", "kHeadDim", "kPackedQ", "kPackedK", "kUsedQ",
                               "kUsedK", "kKeyList", "kWide"});
  source.text +=
      "#include \"kernels/backward_far_rows.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(128)\n"
      "attn_backward_far_rows(const __grid_constant__ attn::device::BackwardParams p,\n"
      "                       const __grid_constant__ attn::device::Expressions e) {\n"
      "  attn::device::backward_far_rows<attn::device::Config>(p, e);\n"
      "}\n";
  return source;
}

Source backward_sink_source(const Problem& problem, const BackwardConfig& config) {
  const bool far = config.features.far_rows;
  Source source;
  source.name = "backward_sink";
  source.entry = "attn_backward_sink";
  source.text = fmt::format(
      "#include \"kernels/backward_sink.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(1024)\n"
      "attn_backward_sink(const __grid_constant__ attn::device::BackwardParams p) {{\n"
      "  attn::device::backward_sink<{}>(p, {:a}f);\n"
      "}}\n",
      far, far ? score_factors(score_expression(problem)).after : 1.F);
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

Source backward_store_source(const BackwardConfig& config) {
  Source source;
  source.name = "backward_store";
  source.entry = "attn_backward_store";
  source.text = fmt::format(
      "#include \"kernels/backward_buffers.cuh\"\n"
      "namespace attn::device {{\n"
      "using Params = BufferGradientParams<{}>;\n"
      "}}\n"
      "extern \"C\" __global__ void __launch_bounds__(256)\n"
      "attn_backward_store(const __grid_constant__ attn::device::Params p) {{\n"
      "  attn::device::store_buffer_gradient(p);\n"
      "}}\n",
      sum_type(config.buffers.exact_sums));
  return source;
}

}  // namespace attn::cuda
