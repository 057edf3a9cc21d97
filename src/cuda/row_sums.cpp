#include "cuda/row_sums.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "cuda/codegen/config_text.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/jit/kernels_by_key.hpp"
#include "cuda/row_axis.hpp"

namespace attn::cuda {
namespace {

static_assert(kMostRowTerms == static_cast<std::size_t>(device::kMostRowTerms));

// All that the source depends on.
struct RowSumsConfig {
  DType terms, sums;
  int wide;  // elements of a load
  bool operator==(const RowSumsConfig&) const = default;
};

Source row_sums_source(const RowSumsConfig& config) {
  ConfigText text(config.terms);
  text.type("Stored", element_type(config.sums));
  text.number("kWide", config.wide);
  Source source;
  source.name = fmt::format("row_sums {} {}", name(config.terms), name(config.sums));
  source.entry = "attn_row_sums";
  source.text = fmt::format(
      "#include \"ptx/math.cuh\"\n#include \"kernels/row_sums.cuh\"\n"
      "namespace attn::device {{\n{}}}\n"
      "extern \"C\" __global__ void __launch_bounds__(attn::device::kRowSumsThreads)\n"
      "attn_row_sums(const __grid_constant__ attn::device::RowSumsParams p) {{\n"
      "  attn::device::AddRows<attn::device::Config>::run(p);\n"
      "}}\n",
      text.text());
  return source;
}

device::Strides row_strides(const Tensor& t) {
  const std::size_t rows = axis_of_rows(t);
  return {rows == 0 ? 0 : t.strides[0], t.strides[rows], t.strides[rows + 1]};
}

}  // namespace

void row_sums(std::span<const Tensor> terms, const Tensor& sums, const Context& context) {
  if (sums.size() == 0) return;
  const std::size_t rows = axis_of_rows(sums);
  device::RowSumsParams p{};
  p.sums = sums.data;
  p.strides = row_strides(sums);
  p.rows = sums.shape[rows];
  p.heads = static_cast<int>(sums.shape[rows + 1]);
  p.columns = static_cast<int>(sums.shape[rows + 2]);
  p.all_rows = sums.size() / (p.heads * static_cast<std::int64_t>(p.columns));
  bool wide = alignment_of(sums) % 16 == 0;
  for (const Tensor& term : terms) {
    wide = wide && alignment_of(term) % 16 == 0;
    p.terms[p.count++] = {term.data, row_strides(term)};
  }
  const DType of_terms = terms.empty() ? sums.dtype : terms.front().dtype;
  const int packet = 16 / static_cast<int>(std::max(size_of(of_terms), size_of(sums.dtype)));
  const RowSumsConfig config{of_terms, sums.dtype, wide && p.columns % packet == 0 ? packet : 1};
  const auto of_row = static_cast<unsigned>(p.heads * (p.columns / config.wide));
  p.lanes = static_cast<int>(std::min<unsigned>(std::bit_ceil(of_row), device::kRowSumsThreads));
  // More blocks than any GPU runs at once; past them blocks go on.
  constexpr std::int64_t kMostBlocksAtOnce = 1 << 13;
  LaunchConfig launch;
  launch.block = device::kRowSumsThreads;
  launch.grid[0] =
      std::min<std::int64_t>(p.all_rows * p.lanes / device::kRowSumsThreads + 1, kMostBlocksAtOnce);
  const int ordinal = sums.device.index;
  const ContextGuard guard(ordinal);
  std::array<void*, 1> arguments{&p};
  kernels_by_key<RowSumsConfig>()
      .get(ordinal, config, context, [&] { return row_sums_source(config); })
      .launch(launch, context.stream, arguments.data());
}

}  // namespace attn::cuda
