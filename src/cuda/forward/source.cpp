#include "cuda/forward/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/codegen/config_text.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/codegen/wgmma_text.hpp"
#include "cuda/device/params.cuh"
#include "cuda/forward/parameters.hpp"
#include "cuda/limits.hpp"

namespace attn::cuda {
namespace {

// All constants that any of the kernels reads.
std::string print_config(const ForwardConfig& c) {
  const ForwardFeatures& f = c.features;
  ConfigText text(f.dtype);
  text.number("kHeadDim", f.head_dim);
  text.number("kHeadDimV", f.head_dim_v);
  text.number("kBlockM", c.block_m);
  text.number("kBlockN", c.block_n);
  text.number("kWarps", c.warps);
  text.number("kConsumers", c.warps / 4);
  text.number("kStages", c.stages);
  text.number("kStagesK", c.stages_k);
  text.number("kStagesV", c.stages);
  text.number("kStagesQ", c.stages_q);
  text.number("kGroup", c.group);
  text.number("kParts", c.parts());
  text.number("kPageSize", f.page_size);
  text.number("kPageRows", c.page_rows);
  text.number("kProducerRegisters", c.producer_registers);
  text.number("kConsumerRegisters", c.consumer_registers);
  text.flag("kTakeTurns", c.take_turns);
  text.number("kNearBlocks", c.near_blocks);
  text.flag("kStoresBoxes", c.stores_boxes());
  text.flag("kPackedQ", f.packed_q);
  text.flag("kPackedK", f.packed_k);
  text.flag("kUsedQ", f.used_q);
  text.flag("kUsedK", f.used_k);
  text.flag("kVectorO", f.vector_o);
  text.flag("kClearTail", f.packed_k || f.used_k);
  text.flag("kHidesKeys", f.hides_keys);
  text.flag("kSplits", c.splits);
  text.flag("kSkipsEmpty", c.skips_empty);
  text.flag("kSink", f.sink);
  text.flag("kDropout", f.dropout);
  text.flag("kDropsByProduct", c.drops_by_product);
  text.flag("kRngState", f.rng_state);
  text.flag("kClassified", c.classified);
  text.flag("kMaskHeads", f.mask_heads);
  text.flag("kMaskBatches", f.mask_batches);
  return text.text();
}

// The constants that combine reads: few, so that many problems share a kernel.
std::string print_combine_config(const ForwardConfig& c) {
  const ForwardFeatures& f = c.features;
  ConfigText text(f.dtype);
  text.number("kHeadDimV", f.head_dim_v);
  text.flag("kVectorO", f.vector_o);
  text.number("kAcross", c.combine.across);
  text.number("kSplitLanes", c.combine.split_lanes);
  text.number("kThreads", c.combine.threads);
  const bool by_length = c.kernel == ForwardKernel::few_rows && (f.packed_k || f.used_k);
  text.number("kBlockKeys", by_length ? c.block_n : 0);
  text.flag("kPackedQ", f.packed_q);
  text.flag("kUsedQ", f.used_q);
  text.flag("kPackedK", by_length && f.packed_k);
  text.flag("kUsedK", by_length && f.used_k);
  return text.text();
}

}  // namespace

expr::Expr score_expression(const Problem& problem) {
  if (problem.score.empty() && problem.scale() <= 0) return expr::symbols().score;
  return problem.score;
}

int precise_math(DType dtype) noexcept {
  return dtype == DType::f32 ? 2 : dtype == DType::f16 ? 1 : 0;
}

void check_forward_parameters(const Problem& problem, const ForwardConfig& config) {
  std::size_t bytes =
      sizeof(device::ForwardParams) + expressions_bytes(problem.mask, score_expression(problem));
  if (config.kernel == ForwardKernel::sm90) {
    constexpr std::size_t kAlignment = alignof(ForwardMaps);
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment + sizeof(ForwardMaps);
  }
  check_parameters(problem, name(config.kernel), static_cast<std::int64_t>(bytes));
}

Source forward_source(const Problem& problem, const ForwardConfig& config,
                      const expr::Bindings& bindings) {
  check_forward_parameters(problem, config);
  Source source;
  source.name = name(config.kernel);
  source.entry = "attn_forward";
  source.allowed_spill_bytes = config.allowed_spill_bytes;
  std::string& text = source.text;
  text += fmt::format("#define ATTN_PRECISE_MATH {}\n", precise_math(config.features.dtype));
  constexpr std::int64_t kShort = 1 << 20;
  const bool is_short = std::max(problem.seqlen_q, problem.seqlen_k) <= kShort;
  if (is_short) text += "#define ATTN_SHORT_SEQUENCES 1\n";
  text += "#include \"tile/coverage.cuh\"\n#include \"ptx/math.cuh\"\n";
  const bool hopper = config.kernel == ForwardKernel::sm90;
  text += print_expressions(problem.mask, score_expression(problem), bindings, hopper && is_short);
  text += "namespace attn::device {\n" + print_config(config);
  if (hopper) {
    text += "template <class Element, int kColumns>\nstruct ProductSS;\n";
    text += "template <class Element, int kColumns>\nstruct ProductRS;\n";
    text += print_product_ss(config.features.dtype, config.block_n);
    text += print_product_rs(config.features.dtype, config.features.head_dim_v);
  }
  text += "}\n";
  text += fmt::format("#include \"kernels/{}.cuh\"\n", source.name);
  text += fmt::format(
      "extern \"C\" __global__ void __launch_bounds__({0}, {1})\n"
      "attn_forward(const __grid_constant__ attn::device::ForwardParams p,\n"
      "             const __grid_constant__ attn::device::Expressions e{2}) {{\n"
      "  attn::device::{3}<attn::device::Config>(p, e{4});\n"
      "}}\n",
      config.threads(), 1,
      hopper ? ",\n             const __grid_constant__ attn::device::ForwardMaps maps" : "",
      source.name, hopper ? ", maps" : "");
  return source;
}

Source classify_source(const Problem& problem, const ForwardConfig& config,
                       const expr::Bindings& bindings) {
  ForwardConfig whole = config;  // words are of all splits
  whole.splits = false;
  Source source;
  source.name = "classify";
  source.entry = "attn_classify";
  source.text = "#include \"tile/coverage.cuh\"\n#include \"ptx/math.cuh\"\n";
  source.text += print_expressions(problem.mask, score_expression(problem), bindings);
  source.text += "namespace attn::device {\n" + print_config(whole) + "}\n";
  source.text +=
      "#include \"kernels/classify.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(32 * attn::device::Config::kParts)\n"
      "attn_classify(const __grid_constant__ attn::device::ForwardParams p,\n"
      "              const __grid_constant__ attn::device::Expressions e) {\n"
      "  attn::device::classify_key_blocks<attn::device::Config>(p, e);\n"
      "}\n";
  return source;
}

Source combine_source(const ForwardConfig& config) {
  Source source;
  source.name = "combine";
  source.entry = "attn_combine";
  // For sm_100 the assembler keeps to 40 registers, and a number of the loop's end does not fit.
  source.allowed_spill_bytes = 8;
  source.text = "#include \"ptx/math.cuh\"\nnamespace attn::device {\n" +
                print_combine_config(config) + "}\n";
  source.text +=
      "#include \"kernels/combine.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(attn::device::Config::kThreads)\n"
      "attn_combine(const __grid_constant__ attn::device::ForwardParams p) {\n"
      "  attn::device::combine<attn::device::Config>(p);\n"
      "}\n";
  return source;
}

}  // namespace attn::cuda
