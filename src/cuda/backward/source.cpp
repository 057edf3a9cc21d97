#include "cuda/backward/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include "cuda/backward/one_pass.hpp"
#include "cuda/codegen/buffer_gradients.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/codegen/expression_gradients.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/codegen/wgmma_text.hpp"
#include "cuda/forward/source.hpp"
#include "cuda/heuristics/one_pass_sizes.hpp"
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
  text.flag("kRngState", c.rng_state);
  text.flag("kScoreHides", c.score_hides);
  if (c.kernel == BackwardKernel::flash_attention) text.flag("kSkipsEmpty", c.skips_empty);
  if (is_one_pass(c.kernel)) {
    text.number("kRowThreads", backward_row_threads(c));
    text.number("kPieceColumns", c.piece_columns);
    // f16 does not scale late: its smallest numbers would lose digits of dS before they are scaled.
    text.flag("kScalesLate",
              c.kernel == BackwardKernel::sm90 && c.dropout && c.dtype == DType::bf16);
    text.flag("kLongestFirst", c.longest_first);
    text.flag("kOrdered", c.ordered);
  }
  if (c.kernel == BackwardKernel::sm80) {
    text.number("kScoreWarps", c.score_warps);
    text.number("kKeyWarps", c.key_warps);
    text.number("kQueryWarps", c.query_warps);
    text.flag("kStoreMatrices", c.store_matrices);
  }
  if (c.kernel == BackwardKernel::sm90_buffers) {
    text.number("kPartKeys", c.part_keys);
    text.flag("kSameVectors", c.same_vectors);
    text.number("kProducerRegisters", c.producer_registers);
    text.number("kScoreRegisters", c.score_registers);
  }
  if (c.kernel == BackwardKernel::sm90) {
    text.number("kScoreGroups", c.score_groups);
    text.number("kCluster", c.cluster);
    text.number("kStagesQ", c.stages);
    text.number("kStagesO", c.stages_o);
    text.number("kStagesP", c.stages_p);
    text.number("kStagesDq", c.stages_dq);
    text.number("kProducerRegisters", c.producer_registers);
    text.number("kScoreRegisters", c.score_registers);
    text.number("kGradientRegisters", c.gradient_registers);
    text.flag("kMaskHeads", c.mask_heads);
    text.flag("kMaskBatches", c.mask_batches);
  }
  return text.text();
}

std::string kernel_name(const BackwardConfig& config) {
  if (config.gradient == Gradient::all || config.kernel == BackwardKernel::sm80_buffers ||
      config.kernel == BackwardKernel::sm90_buffers) {
    return std::string(name(config.kernel));
  }
  return fmt::format("{}_{}", name(config.kernel), word(config.gradient));
}

// The Config of the kernels before and after a kernel of one pass, which go place by place.
std::string print_config_of_places(BackwardConfig config) {
  config.block_n = kPlaceQueries;
  return print_config(config);
}

// Warpgroup products of a Hopper kernel, each shape once.
std::string print_products(const BackwardConfig& c) {
  constexpr int kDqColumns = 128, kGradientColumns = 192;
  std::string text = "template <class Element, int kColumns>\nstruct ProductSS;\n";
  if (c.kernel == BackwardKernel::sm90_buffers) {
    return text + print_product_ss(c.dtype, c.part_keys);
  }
  text +=
      "template <class Element, int kColumns>\nstruct ProductRS;\n"
      "template <class Element, int kColumns>\nstruct ProductST;\n"
      "template <class Element, int kColumns>\nstruct ProductTT;\n";
  text += print_product_ss(c.dtype, c.block_m / c.cluster);
  std::set<int> columns;  // of the gradients' products, as BackwardSm90GradientGroup splits them
  for (const int d : {c.head_dim, c.head_dim_v}) {
    if (d > kGradientColumns) {
      columns.insert({kDqColumns, d - kDqColumns});
    } else {
      columns.insert(d);
    }
  }
  if (c.score_groups > 1) columns = {c.block_m};  // BackwardSm90TransposedGroup
  for (const int d : columns) text += print_product_tt(c.dtype, d);
  if (c.cluster > 1) text += print_product_st(c.dtype, kDqColumns);
  text += print_product_rs(c.dtype, std::min(c.head_dim, kDqColumns));
  const int rest = c.head_dim % kDqColumns;
  if (c.head_dim > kDqColumns && rest != 0) text += print_product_rs(c.dtype, rest);
  return text;
}

constexpr std::string_view kIncludes =
    "#include \"params.cuh\"\n#include \"tile/coverage.cuh\"\n#include \"ptx/math.cuh\"\n";

}  // namespace

int backward_precise_math(const BackwardConfig& config) noexcept {
  constexpr int kPrecise = 2;
  return is_scalar(config.kernel) ? kPrecise : precise_math(config.dtype);
}

void check_backward_parameters(const Problem& problem, const BackwardConfig& config,
                               const std::vector<std::string>& names) {
  const std::size_t maps =
      reads_maps(config.kernel) ? sizeof(BackwardMaps) + alignof(BackwardMaps) : 0;
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
  const bool hopper = reads_maps(config.kernel);
  source.name = kernel_name(config);
  source.entry = "attn_backward";
  source.allowed_spill_bytes = config.allowed_spill_bytes;
  source.text =
      fmt::format("#define ATTN_PRECISE_MATH {}\n{}", backward_precise_math(config), kIncludes);
  constexpr std::int64_t kShort = 1 << 20;
  const bool is_short = std::max(problem.seqlen_q, problem.seqlen_k) <= kShort;
  source.text += print_expressions(problem.mask, score_expression(problem), printed, is_short);
  // On tensor cores the digits that the shorter form loses are beyond those of 16-bit products,
  // unless every score of a row is saturated (docs/numerics.md, "Extremes").
  const auto form =
      is_scalar(config.kernel) ? expr::TanhSlope::exponentials : expr::TanhSlope::squares;
  source.text += buffers ? print_buffer_gradients(problem.score, names, config.exact_sums, printed)
                         : print_slope(problem.score, form, printed);
  source.text += "namespace attn::device {\n" + print_config(config);
  if (hopper) source.text += print_products(config);
  source.text += "}\n";
  source.text += fmt::format(
      "#include \"kernels/{0}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({1}, 1)\n"
      "attn_backward(const __grid_constant__ attn::device::BackwardParams p,\n"
      "              const __grid_constant__ attn::device::Expressions e,\n"
      "              const __grid_constant__ attn::device::{2} derivatives{3}) {{\n"
      "  attn::device::{0}<attn::device::Config>(p, e, derivatives{4});\n"
      "}}\n",
      name(config.kernel), config.threads(), buffers ? "BufferGradients" : "Slope",
      hopper ? ",\n              const __grid_constant__ attn::device::BackwardMaps maps" : "",
      hopper ? ", maps" : "");
  return source;
}

Source backward_one_pass_rows_source(const BackwardConfig& config, bool aligned_o) {
  Source source;
  source.name = "backward_one_pass_rows";
  source.entry = "attn_backward_rows";
  source.text =
      fmt::format("{}namespace attn::device {{\n{}}}\n", kIncludes, print_config_of_places(config));
  source.text += fmt::format(
      "#include \"kernels/backward_one_pass_rows.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(256)\n"
      "attn_backward_rows(const __grid_constant__ attn::device::BackwardParams p) {{\n"
      "  attn::device::backward_one_pass_rows<attn::device::Config, {}>(p);\n"
      "}}\n",
      aligned_o);
  return source;
}

Source backward_sm90_words_source(const Problem& problem, const BackwardConfig& config,
                                  const PrintedBuffers& printed) {
  Source source;
  source.name = "backward_sm90_words";
  source.entry = "attn_backward_words";
  source.text = kIncludes;
  source.text += print_expressions(problem.mask, score_expression(problem), printed);
  source.text += "namespace attn::device {\n" + print_config(config) + "}\n";
  source.text +=
      "#include \"kernels/backward_sm90_words.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(128)\n"
      "attn_backward_words(const __grid_constant__ attn::device::BackwardParams p,\n"
      "                    const __grid_constant__ attn::device::Expressions e) {\n"
      "  attn::device::backward_sm90_words<attn::device::Config>(p, e);\n"
      "}\n";
  return source;
}

Source backward_one_pass_dq_source(const BackwardConfig& config) {
  Source source;
  source.name = "backward_one_pass_dq";
  source.entry = "attn_backward_dq";
  source.text =
      fmt::format("{}namespace attn::device {{\n{}}}\n", kIncludes, print_config_of_places(config));
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
      sum_type(config.exact_sums));
  return source;
}

}  // namespace attn::cuda
