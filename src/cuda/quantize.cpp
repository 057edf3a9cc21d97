#include "cuda/quantize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/hadamard.hpp"
#include "cuda/cached_row.hpp"
#include "cuda/codegen/config_text.hpp"
#include "cuda/device/kernels/quantize_params.cuh"
#include "cuda/driver/device.hpp"
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
        wide(wide_columns(call.x, call.type, call.to)),
        lanes(lanes_of_row(dim, wide)) {}
  bool operator==(const QuantizeConfig&) const = default;

  QuantizePass pass;
  DType source;
  CacheType target;
  QuantizeScale scale;
  std::int64_t dim, hadamard;
  int wide, lanes;
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
      fmt::format("CachedRow<{}, CacheTarget::{}, {}, {}, {}, {}>", element_type(c.source),
                  name(c.target), c.dim, c.wide, c.lanes, c.hadamard);
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
      "extern \"C\" __global__ void __launch_bounds__(kQuantizeThreads, {})\n"
      "attn_quantize(const __grid_constant__ QuantizeParams p) {{\n"
      "  {}(p);\n"
      "}}\n",
      c.hadamard == 0 && c.dim <= c.lanes * c.wide ? 4 : 1, call);
  return source;
}

// Axes of rows: those along which rows share a scale first, so that a scale is written few times,
// then by their distance in memory. Blocks of rows lie along the first.
std::vector<std::size_t> order_of_axes(const QuantizeCall& call) {
  std::vector<std::size_t> order(axes_of_rows(call.x));
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t sequence = order.size() < 2 ? 0 : order.size() - 2;
  const auto key = [&](std::size_t axis) {
    const bool blocks = call.options.block > 1 && axis == sequence;
    const bool shared = call.scale.given() && call.scale.strides[axis] == 0;
    return std::make_tuple(!blocks, !shared, std::abs(call.x.strides[axis]));
  };
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return order;
}

device::QuantizeParams quantize_parameters(const QuantizeCall& call) {
  device::QuantizeParams p{};
  p.x = call.x.data;
  p.to = call.to.data;
  p.scale = static_cast<float*>(call.scale.data);
  p.rows = 1;
  p.block = call.options.block;
  std::fill_n(p.sizes, device::kQuantizeAxes, 1);
  const std::size_t axes = axes_of_rows(call.x);
  const std::vector<std::size_t> order = order_of_axes(call);
  for (std::size_t i = 0; i < axes; ++i) {
    const std::size_t axis = order[i];
    p.sizes[i] = call.x.shape[axis];
    p.x_strides[i] = call.x.strides[axis];
    p.to_strides[i] = call.to.strides[axis];
    p.scale_strides[i] = call.scale.strides[axis];
    p.rows *= call.x.shape[axis];
  }
  const auto set_wraps = [&](const long long* strides, long long* wraps) {
    for (std::size_t i = 0; i + 1 < axes; ++i) wraps[i] = strides[i + 1] - p.sizes[i] * strides[i];
  };
  set_wraps(p.x_strides, p.x_wraps);
  set_wraps(p.to_strides, p.to_wraps);
  set_wraps(p.scale_strides, p.scale_wraps);
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
  // As many threads as an H200 runs at once, of which some have a row or several each.
  constexpr std::int64_t kMostThreads = 1 << 18, kThreads = device::kQuantizeThreads;
  const QuantizeConfig of_rows(call, QuantizePass::quantize);
  const std::int64_t most = kMostThreads / of_rows.lanes, in_block = kThreads / of_rows.lanes;
  p.rows_together = (p.rows + most - 1) / most;
  const std::int64_t parts = (p.rows + p.rows_together - 1) / p.rows_together;
  const auto launch = [&](QuantizePass pass, std::int64_t blocks) {
    LaunchConfig of;
    of.block = device::kQuantizeThreads;
    of.grid[0] = blocks;
    std::array<void*, 1> arguments{&p};
    QuantizeConfig config = of_rows;
    config.pass = pass;
    kernels_by_key<QuantizeConfig>()
        .get(ordinal, config, context, [&] { return source_of(config); })
        .launch(of, context.stream, arguments.data());
  };
  const std::int64_t blocks = (parts + in_block - 1) / in_block;
  if (shares_scales(call)) {
    launch(QuantizePass::clear_scales, (p.rows + kThreads - 1) / kThreads);
    launch(QuantizePass::find_scales, blocks);
  }
  launch(QuantizePass::quantize, blocks);
}

}  // namespace attn::cuda
