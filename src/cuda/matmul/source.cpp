#include "cuda/matmul/source.hpp"

#include <fmt/format.h>

#include "cuda/codegen/config_text.hpp"
#include "cuda/codegen/wgmma_text.hpp"

namespace attn::cuda {
namespace {

constexpr int kFirstOfWide = 192;  // HopperRing::kAtOnce

std::string_view element_of(const MatmulConfig& c) {
  switch (c.float8) {
    case Float8::none:
      return element_type(c.dtype);
    case Float8::e4m3:
      return "Float8E4M3";
    case Float8::e5m2:
      return "Float8E5M2";
  }
  return {};
}

std::string print_config(const MatmulConfig& c) {
  ConfigText text(element_of(c));
  text.type("Result", element_type(c.output));
  text.flag("kFloat8", c.float8 != Float8::none);
  text.flag("kScaled", c.scaled);
  text.flag("kFloatOutput", c.output == DType::f32);
  text.number("kBias", c.bias);
  text.number("kMasked", c.masked);
  text.number("kBlock", c.block);
  text.number("kActivation", static_cast<int>(c.activation));
  text.flag("kStepsTogetherA", c.steps_together_a);
  text.flag("kStepsTogetherB", c.steps_together_b);
  text.number("kGroups", c.groups);
  text.number("kRows", c.block_m);
  text.number("kColumns", c.block_n);
  text.number("kDepth", c.block_k);
  text.number("kThreads", c.threads);
  text.number("kWarpsDown", c.warps_down);
  text.number("kStages", c.stages);
  text.flag("kStoresBoxes", c.stores_boxes);
  text.flag("kAlignedC", c.aligned_c);
  text.number("kSplits", c.splits);
  text.number("kMulticast", c.multicast);
  return text.text();
}

std::string print_product(const MatmulConfig& c, int columns) {
  if (c.float8 != Float8::none) {
    return print_product_float8(element_of(c), fmt::format("{0}.{0}", name(c.float8)), columns);
  }
  if (c.steps_together_a) {
    return c.steps_together_b ? print_product_ss(c.dtype, columns)
                              : print_product_st(c.dtype, columns);
  }
  return c.steps_together_b ? print_product_ts(c.dtype, columns)
                            : print_product_tt(c.dtype, columns);
}

// Of tiles of more columns than an instruction multiplies the two that HopperRing takes.
std::string print_products(const MatmulConfig& c) {
  if (c.block_n <= kMostWgmmaColumns) return print_product(c, c.block_n);
  return print_product(c, kFirstOfWide) + print_product(c, c.block_n - kFirstOfWide);
}

}  // namespace

// Its function is matmul_<rung>, of a file of that name.
Source matmul_source(const MatmulConfig& c) {
  const bool maps = c.groups > 0;
  Source source;
  source.name = fmt::format("matmul_{}", name(c.rung));
  source.entry = "attn_matmul";
  source.text = "#include \"ptx/math.cuh\"\nnamespace attn::device {\n" + print_config(c);
  if (maps) {
    for (const char* kind : {"SS", "ST", "TS", "TT"}) {
      source.text +=
          fmt::format("template <class Element, int kColumns>\nstruct Product{};\n", kind);
    }
    source.text += print_products(c);
  }
  source.text += fmt::format(
      "}}\n#include \"matmul/{0}.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__({1}, {4})\n"
      "attn_matmul(const __grid_constant__ attn::device::MatmulParams p{2}) {{\n"
      "  attn::device::matmul_{0}<attn::device::Config>(p{3});\n"
      "}}\n",
      name(c.rung), c.threads,
      maps ? ",\n            const __grid_constant__ attn::device::MatmulMaps maps" : "",
      maps ? ", maps" : "", c.blocks);
  return source;
}

}  // namespace attn::cuda
