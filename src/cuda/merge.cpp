#include "cuda/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cuda/driver/device.hpp"
#include "cuda/driver/pointer.hpp"
#include "cuda/jit/kernels_by_key.hpp"

namespace attn::cuda {
namespace {

static_assert(kMostMergedParts == device::kMergeParts);
static_assert(sizeof(device::MergeParams) <= 4096, "the parameters of a kernel");

// Whether `columns` columns of O can be loaded and stored at once.
bool is_wide(const Tensor& o, int columns) {
  const auto last = static_cast<std::size_t>(o.rank) - 1;
  const auto bytes = static_cast<std::int64_t>(size_of(o.dtype));
  return o.shape[last] % columns == 0 && o.strides[last] == 1 &&
         alignment_of(o) % (columns * bytes) == 0;
}

device::MergeType type_of_part(DType dtype) {
  if (dtype == DType::bf16) return device::MergeType::bf16;
  return dtype == DType::f16 ? device::MergeType::f16 : device::MergeType::f32;
}

// Packed tensors are read as a batch of one.
device::MergePart merge_part(const Outputs& outputs) {
  const Tensor &o = outputs.o, &lse = outputs.lse;
  device::MergePart part{};
  part.o = o.data;
  part.lse = static_cast<float*>(lse.data);
  part.type = type_of_part(o.dtype);
  const bool packed = o.rank == 3;
  std::copy_n(o.strides.begin(), o.rank, part.o_strides + (packed ? 1 : 0));
  part.lse_strides[0] = packed ? 0 : lse.strides[0];
  part.lse_strides[1] = lse.strides[packed ? 1 : 2];
  part.lse_strides[2] = lse.strides[packed ? 0 : 1];
  return part;
}

std::string_view text_of(device::MergeType type) {
  switch (type) {
    case device::MergeType::f32:
      return "f32";
    case device::MergeType::bf16:
      return "bf16";
    case device::MergeType::f16:
      return "f16";
    case device::MergeType::mixed:
      return "mixed";
  }
  return {};
}

}  // namespace

MergeConfig::MergeConfig(const std::vector<Outputs>& parts, const Outputs& result)
    : part_lanes(2), type(type_of_part(parts.front().o.dtype)) {
  while (part_lanes < static_cast<int>(parts.size())) part_lanes *= 2;
  // 16 bytes of the narrowest type.
  const auto all = [&](int columns) {
    return is_wide(result.o, columns) &&
           std::all_of(parts.begin(), parts.end(), [&](const auto& p) {
             return is_wide(p.o, columns) && columns * static_cast<int>(size_of(p.o.dtype)) <= 16;
           });
  };
  wide = all(8) ? 8 : all(4) ? 4 : 1;
  for (const Outputs& part : parts) {
    if (type_of_part(part.o.dtype) != type) type = device::MergeType::mixed;
  }
}

Source merge_source(const MergeConfig& config) {
  Source source;
  source.name = "merge";
  source.entry = "attn_merge";
  source.text = fmt::format(
      "#include \"kernels/merge.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(attn::device::kMergeThreads, "
      "attn::device::kMergeBlocks)\n"
      "attn_merge(const __grid_constant__ attn::device::MergeParams p) {{\n"
      "  attn::device::merge<{}, {}, attn::device::MergeType::{}>(p);\n"
      "}}\n",
      config.wide, config.part_lanes, text_of(config.type));
  return source;
}

void merge(const std::vector<Outputs>& parts, const Outputs& result, const Context& context) {
  const int ordinal = result.o.device.index;
  const ContextGuard guard(ordinal);
  device::MergeParams p{};
  for (const Outputs& part : parts) p.part[p.parts++] = merge_part(part);
  p.result = merge_part(result);
  const auto last = static_cast<std::size_t>(result.o.rank) - 1;
  p.columns = result.o.shape[last];
  p.heads = result.o.shape[last - 1];
  p.seqlen_q = result.o.shape[last - 2];
  p.rows = p.heads * p.seqlen_q * (result.o.rank == 3 ? 1 : result.o.shape[0]);
  if (p.rows == 0) return;
  const MergeConfig config(parts, result);
  const std::int64_t packets = (p.columns + config.wide - 1) / config.wide;
  while (p.column_lanes_log2 < 5 && (1 << p.column_lanes_log2) < packets) ++p.column_lanes_log2;
  // Past 2^16 blocks of threads, more than any GPU runs at once, warps go on.
  constexpr std::int64_t kWarps = device::kMergeThreads / 32, kMostBlocksAtOnce = 1 << 16;
  const std::int64_t warps = (p.rows * config.part_lanes + 31) / 32;
  LaunchConfig launch;
  launch.block = device::kMergeThreads;
  launch.grid[0] = std::min<std::int64_t>((warps + kWarps - 1) / kWarps, kMostBlocksAtOnce);
  std::array<void*, 1> arguments{&p};
  kernels_by_key<MergeConfig>()
      .get(ordinal, config, context, [&] { return merge_source(config); })
      .launch(launch, context.stream, arguments.data());
}

}  // namespace attn::cuda
