#include "cuda/forward/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cache_type.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/device/params.cuh"
#include "cuda/limits.hpp"

namespace attn::cuda {
namespace {

// The device's name of it (device/tile/cache_type.cuh).
std::string_view cache_type(CacheType type) {
  switch (type) {
    case CacheType::as_q:
    case CacheType::f64:  // no kernel takes these
    case CacheType::f32:
      return "CacheF32";
    case CacheType::bf16:
      return "CacheBF16";
    case CacheType::f16:
      return "CacheF16";
    case CacheType::e4m3:
      return "CacheE4M3";
    case CacheType::e5m2:
      return "CacheE5M2";
    case CacheType::i8:
      return "CacheI8";
    case CacheType::q8_0:
      return "CacheQ8_0";
    case CacheType::q4_0:
      return "CacheQ4_0";
  }
  return {};
}

// Constants that every forward kernel has; its own follow. keys: of a block.
ConfigText common_config(const ForwardConfig& c, bool splits, int keys) {
  const ForwardFeatures& f = c.features;
  ConfigText text(f.dtype);
  text.type("Output", element_type(f.type_o));
  text.number("kHeadDim", f.head_dim);
  text.number("kHeadDimV", f.head_dim_v);
  text.number("kBlockM", c.tiling.rows);
  text.number("kBlockN", keys);
  text.number("kGroup", c.tiling.group);
  text.number("kParts", c.tiling.parts);
  text.number("kPageSize", f.page_size);
  text.flag("kKeyList", f.key_list);
  if (f.cached) print_cache_types(f, text);
  text.flag("kPackedQ", f.packed_q);
  text.flag("kPackedK", f.packed_k);
  text.flag("kUsedQ", f.used_q);
  text.flag("kUsedK", f.used_k);
  text.number("kWide", static_cast<int>(f.wide));
  text.flag("kVectorO", f.vector_o);
  text.flag("kFloat8", c.kernel->takes_float8);
  if (c.kernel->takes_float8) {
    text.type("OperandQ", float8_element(f.type_q));
    text.type("OperandK", float8_element(f.type_k));
    text.type("OperandV", float8_element(f.type_v));
  }
  text.flag("kClearTail", !c.kernel->takes_float8 && (f.packed_k || f.used_k || f.paged));
  text.flag("kHidesKeys", f.hides_keys);
  text.flag("kSplits", splits);
  text.flag("kByLength", splits && c.by_length);
  text.flag("kKeepsParts", c.keeps_parts);
  text.number("kLeastQueries", c.queries.least);
  text.number("kMostQueries", c.queries.most);
  text.flag("kUneven", c.queries.uneven());
  text.flag("kSink", f.sink);
  text.flag("kDropout", f.dropout);
  text.flag("kRngState", f.rng_state);
  text.flag("kClassified", c.classified);
  text.flag("kMaskHeads", f.mask_heads);
  text.flag("kMaskBatches", f.mask_batches);
  return text;
}

std::string print_config(const ForwardConfig& c) {
  ConfigText text = common_config(c, c.splits, c.tiling.keys);
  text.number("kSharedBytes", static_cast<int>(c.tiling.shared_bytes));
  text.flag("kMaxLogit", c.features.max_logit);
  c.shape->print(c, text);
  return text.text();
}

constexpr unsigned kWideLengths = device::kWideCuSeqlensQ | device::kWideCuSeqlensK |
                                  device::kWideSequsedQ | device::kWideSequsedK;

// The constants that classify and gather_key_blocks read. Their words are of all splits.
std::string print_classify_config(ForwardConfig c) {
  constexpr bool kSplits = false;
  c.features.wide &= kWideLengths;
  const int keys = c.tiling.gathered_keys > 0 ? c.tiling.gathered_keys : c.tiling.keys;
  return common_config(c, kSplits, keys)
      .text_of({"kBlockM", "kBlockN", "kGroup", "kParts", "kPageSize", "kKeyList", "kPackedQ",
                "kPackedK", "kUsedQ", "kUsedK", "kWide", "kSplits", "kLeastQueries", "kMostQueries",
                "kMaskHeads", "kMaskBatches"});
}

// The constants that combine reads: few, so that many problems share a kernel.
std::string print_combine_config(const ForwardConfig& c) {
  const ForwardFeatures& f = c.features;
  ConfigText text(f.type_o);
  text.number("kHeadDimV", f.head_dim_v);
  text.flag("kVectorO", f.vector_o);
  text.number("kAcross", c.combine.across);
  text.number("kSplitLanes", c.combine.split_lanes);
  text.number("kThreads", c.combine.threads);
  text.number("kBlockKeys", c.by_length ? c.tiling.keys : 0);
  text.flag("kFillsGrid", c.fills_grid);
  text.flag("kWholeIsStored", c.by_length && c.kernel->takes_pieces && !c.keeps_parts);
  text.number("kOtherParts", c.other_parts);
  text.number("kLeastQueries", c.queries.least);
  text.number("kMostQueries", c.queries.most);
  text.flag("kPackedQ", f.packed_q);
  text.flag("kUsedQ", f.used_q);
  text.flag("kPackedK", c.by_length && f.packed_k);
  text.flag("kUsedK", c.by_length && f.used_k);
  text.number("kWide", static_cast<int>(f.wide & kWideLengths));
  return text.text();
}

}  // namespace

void print_cache_types(const ForwardFeatures& f, ConfigText& to) {
  if (core::is_scaled(f.type_q)) {
    to.type("CacheQ", cache_type(f.type_q));
    to.flag("kScaledQ", f.scale_q);
  }
  to.type("CacheK", cache_type(f.type_k));
  to.type("CacheV", cache_type(f.type_v));
  to.flag("kScaledK", f.scale_k);
  to.flag("kScaledV", f.scale_v);
}

expr::Expr score_expression(const Problem& problem) {
  if (problem.score.empty() && problem.scale() <= 0) return expr::symbols().score;
  return problem.score;
}

int precise_math(DType dtype) noexcept {
  return dtype == DType::f32 ? 2 : dtype == DType::f16 ? 1 : 0;
}

void check_forward_parameters(const Problem& problem, const ForwardConfig& config) {
  std::size_t bytes = (config.features.cached ? sizeof(device::CachedForwardParams)
                                              : sizeof(device::ForwardParams)) +
                      expressions_bytes(problem.mask, score_expression(problem));
  if (config.kernel->reads_maps) {
    constexpr std::size_t kAlignment = alignof(ForwardMaps);
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment + sizeof(ForwardMaps);
  }
  check_parameters(problem, config.kernel->name, static_cast<std::int64_t>(bytes));
}

Source forward_source(const Problem& problem, const ForwardConfig& config,
                      const PrintedBuffers& printed) {
  check_forward_parameters(problem, config);
  Source source;
  source.name = config.kernel->name;
  source.entry = "attn_forward";
  source.allowed_spill_bytes = config.tiling.spill_bytes;
  std::string& text = source.text;
  text += fmt::format("#define ATTN_PRECISE_MATH {}\n", precise_math(config.features.dtype));
  constexpr std::int64_t kShort = 1 << 20;
  const bool is_short = std::max(problem.seqlen_q, problem.seqlen_k) <= kShort;
  if (is_short) text += "#define ATTN_SHORT_SEQUENCES 1\n";
  text += "#include \"tile/coverage.cuh\"\n#include \"ptx/math.cuh\"\n";
  const bool maps = config.kernel->reads_maps;
  text +=
      print_expressions(problem.mask, score_expression(problem), printed,
                        config.kernel->bounds_keys && is_short, config.features.mask_scans_buffers);
  const bool cached = config.features.cached;
  if (cached) text += "#include \"tile/cache_type.cuh\"\n";
  text += "namespace attn::device {\n" + print_config(config);
  text += config.shape->declarations(config);
  text += "}\n";
  text += fmt::format("#include \"kernels/{}.cuh\"\n", source.name);
  text += fmt::format(
      "extern \"C\" __global__ void __launch_bounds__({0}, {1})\n"
      "attn_forward(const __grid_constant__ attn::device::{5}ForwardParams p,\n"
      "             const __grid_constant__ attn::device::Expressions e{2}) {{\n"
      "  attn::device::{3}<attn::device::Config>(p, e{4});\n"
      "}}\n",
      config.tiling.threads, cached ? config.tiling.blocks_at_once : 1,
      maps ? ",\n             const __grid_constant__ attn::device::ForwardMaps maps" : "",
      source.name, maps ? ", maps" : "", cached ? "Cached" : "");
  return source;
}

Source classify_source(const Problem& problem, const ForwardConfig& config,
                       const PrintedBuffers& printed) {
  Source source;
  source.name = "classify";
  source.entry = "attn_classify";
  source.text = "#include \"tile/coverage.cuh\"\n#include \"ptx/math.cuh\"\n";
  source.text += print_classifier(problem.mask, printed);
  source.text += "namespace attn::device {\n" + print_classify_config(config) + "}\n";
  const bool gathers = config.tiling.gathered_keys > 0;
  source.text += fmt::format(
      "#include \"kernels/{}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({})\n"
      "attn_classify(const __grid_constant__ attn::device::ForwardParams p,\n"
      "              const __grid_constant__ attn::device::Expressions e) {{\n"
      "  attn::device::{}<attn::device::Config>(p, e);\n"
      "}}\n",
      gathers ? "gather_key_blocks" : "classify",
      gathers ? "attn::device::kGatherThreads" : "32 * attn::device::Config::kParts",
      gathers ? "gather_key_blocks" : "classify_key_blocks");
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
      "attn_combine(const __grid_constant__ attn::device::ForwardParams p,\n"
      "             const __grid_constant__ attn::device::OtherParts others) {\n"
      "  attn::device::combine<attn::device::Config>(p, others);\n"
      "}\n";
  return source;
}

}  // namespace attn::cuda
