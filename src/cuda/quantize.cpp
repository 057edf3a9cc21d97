#include "cuda/quantize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/cache_type.hpp"
#include "core/hadamard.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/device/kernels/quantize_params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/jit/kernels_by_key.hpp"

namespace attn::cuda {
namespace {

static_assert(kMostQuantizedColumns == device::kQuantizeColumns);

using device::QuantizeScale;

enum class QuantizePass { clear_scales, find_scales, quantize };

std::size_t axes_of_rows(const Tensor& t) { return static_cast<std::size_t>(t.rank) - 1; }

bool shares_scales(const QuantizeCall& call) {
  if (!call.scale.given()) return false;
  bool shared = call.options.block > 1;
  for (std::size_t axis = 0; axis < axes_of_rows(call.x); ++axis) {
    shared = shared || (call.x.shape[axis] > 1 && call.scale.strides[axis] == 0);
  }
  return shared;
}

// Columns that are loaded and stored at once.
int wide_columns(const QuantizeCall& call) {
  constexpr int kWide = 4;
  const auto fits = [](const Tensor& t) {
    return alignment_of(t) % (kWide * static_cast<std::int64_t>(size_of(t.dtype))) == 0;
  };
  const std::int64_t dim = call.x.shape[axes_of_rows(call.x)];
  return dim % kWide == 0 && fits(call.x) && (core::is_blocked(call.type) || fits(call.to)) ? kWide
                                                                                            : 1;
}

// All that the source depends on.
struct QuantizeConfig {
  QuantizeConfig(const QuantizeCall& call, QuantizePass of)
      : pass(of),
        source(call.x.dtype),
        target(call.type),
        scale(!call.scale.given()   ? QuantizeScale::none
              : shares_scales(call) ? QuantizeScale::shared
                                    : QuantizeScale::row),
        dim(call.x.shape[axes_of_rows(call.x)]),
        hadamard(call.options.rotation ? core::hadamard_size(dim) : 0),
        wide(wide_columns(call)) {}
  bool operator==(const QuantizeConfig&) const = default;

  QuantizePass pass;
  DType source;
  CacheType target;
  QuantizeScale scale;
  std::int64_t dim, hadamard;
  int wide;
};

std::string_view text_of(QuantizeScale scale) {
  switch (scale) {
    case QuantizeScale::none:
      return "none";
    case QuantizeScale::row:
      return "row";
    case QuantizeScale::shared:
      return "shared";
  }
  return {};
}

Source source_of(const QuantizeConfig& c) {
  const std::string rows =
      fmt::format("Quantize<{}, CacheTarget::{}, {}, {}, {}>", element_type(c.source),
                  name(c.target), c.dim, c.wide, c.hadamard);
  std::string call;
  switch (c.pass) {
    case QuantizePass::clear_scales:
      call = "clear_scales";
      break;
    case QuantizePass::find_scales:
      call = fmt::format("find_scales<{}>", rows);
      break;
    case QuantizePass::quantize:
      call = fmt::format("quantize<{}, QuantizeScale::{}>", rows, text_of(c.scale));
      break;
  }
  Source source;
  source.name = "quantize";
  source.entry = "attn_quantize";
  source.text = fmt::format(
      "#include \"kernels/quantize.cuh\"\n"
      "using namespace attn::device;\n"
      "extern \"C\" __global__ void __launch_bounds__(kQuantizeThreads)\n"
      "attn_quantize(const __grid_constant__ QuantizeParams p) {{\n"
      "  {}(p);\n"
      "}}\n",
      call);
  return source;
}

// Rows in the order in which those that share a scale lie behind each other: along the sequence,
// then along the heads.
device::QuantizeParams quantize_parameters(const QuantizeCall& call) {
  device::QuantizeParams p{};
  p.x = call.x.data;
  p.to = call.to.data;
  p.scale = static_cast<float*>(call.scale.data);
  p.rows = 1;
  p.block = call.options.block;
  std::fill_n(p.sizes, device::kQuantizeAxes, 1);
  const std::size_t axes = axes_of_rows(call.x);
  std::array<std::size_t, device::kQuantizeAxes> order{};
  for (std::size_t i = 0; i < axes; ++i) order[i] = axes - 1 - i;
  if (axes > 1) std::swap(order[0], order[1]);
  for (std::size_t i = 0; i < axes; ++i) {
    const std::size_t axis = order[i];
    p.sizes[i] = call.x.shape[axis];
    p.x_strides[i] = call.x.strides[axis];
    p.to_strides[i] = call.to.strides[axis];
    p.scale_strides[i] = call.scale.strides[axis];
    p.rows *= call.x.shape[axis];
  }
  if (call.options.rotation) {
    for (std::int64_t c = 0; c < call.x.shape[axes]; ++c) {
      const unsigned negated = core::negates_column(*call.options.rotation, c) ? 1 : 0;
      p.negated[c / 32] |= negated << c % 32;
    }
  }
  return p;
}

}  // namespace

Source quantize_source(const QuantizeCall& call) {
  return source_of(QuantizeConfig(call, QuantizePass::quantize));
}

void quantize(const QuantizeCall& call, const Context& context) {
  if (call.x.size() == 0) return;
  const int ordinal = call.x.device.index;
  const ContextGuard guard(ordinal);
  device::QuantizeParams p = quantize_parameters(call);
  // As many warps as an H100 runs at once, with a row or several each.
  constexpr std::int64_t kMostWarps = 1 << 13, kWarps = device::kQuantizeThreads / 32;
  p.rows_together = (p.rows + kMostWarps - 1) / kMostWarps;
  const std::int64_t warps = (p.rows + p.rows_together - 1) / p.rows_together;
  const auto launch = [&](QuantizePass pass, std::int64_t blocks) {
    LaunchConfig of;
    of.block = device::kQuantizeThreads;
    of.grid[0] = blocks;
    std::array<void*, 1> arguments{&p};
    const QuantizeConfig config(call, pass);
    kernels_by_key<QuantizeConfig>()
        .get(ordinal, config, context, [&] { return source_of(config); })
        .launch(of, context.stream, arguments.data());
  };
  const std::int64_t blocks = (warps + kWarps - 1) / kWarps;
  if (shares_scales(call)) {
    constexpr std::int64_t kThreads = device::kQuantizeThreads;
    launch(QuantizePass::clear_scales, (p.rows + kThreads - 1) / kThreads);
    launch(QuantizePass::find_scales, blocks);
  }
  launch(QuantizePass::quantize, blocks);
}

}  // namespace attn::cuda
