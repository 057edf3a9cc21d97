#include "cuda/block_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/device/params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/jit/kernels_by_key.hpp"

namespace attn::cuda {
namespace {

struct BlockListConfig {
  bool wide = false;  // lists of int64
  bool operator==(const BlockListConfig&) const = default;
};

}  // namespace

Source block_list_source(bool wide) {
  Source source;
  source.name = "block_list";
  source.entry = "attn_block_list";
  source.text = fmt::format(
      "#include \"kernels/block_list.cuh\"\n"
      "extern \"C\" __global__ void __launch_bounds__(attn::device::kBlockListThreads)\n"
      "attn_block_list(const __grid_constant__ attn::device::BlockListParams p) {{\n"
      "  attn::device::write_block_mask<{}>(p);\n"
      "}}\n",
      wide);
  return source;
}

void write_block_mask(const Tensor& lists, const Tensor& blocks, const Context& context) {
  const ContextGuard guard(blocks.device.index);
  device::BlockListParams parameters{};
  const BlockListConfig config{.wide = lists.dtype == DType::i64};
  parameters.lists = lists.data;
  parameters.blocks = static_cast<unsigned char*>(blocks.data);
  std::copy_n(lists.strides.begin(), 3, parameters.list_strides);
  std::copy_n(blocks.strides.begin(), 3, parameters.block_strides);
  parameters.heads = blocks.shape[1];
  parameters.blocks_q = blocks.shape[2];
  parameters.rows = blocks.shape[0] * blocks.shape[1] * blocks.shape[2];
  parameters.entries = static_cast<int>(lists.shape[3]);
  parameters.blocks_k = static_cast<int>(blocks.shape[3]);
  // A warp a row; past 2^16 blocks of threads, more than any GPU runs at once, warps go on.
  constexpr std::int64_t kWarps = device::kBlockListThreads / 32, kMostBlocksAtOnce = 1 << 16;
  LaunchConfig launch;
  launch.block = device::kBlockListThreads;
  launch.grid[0] = static_cast<unsigned>(
      std::clamp<std::int64_t>((parameters.rows + kWarps - 1) / kWarps, 1, kMostBlocksAtOnce));
  std::array<void*, 1> arguments{&parameters};
  kernels_by_key<BlockListConfig>()
      .get(blocks.device.index, config, context, [&] { return block_list_source(config.wide); })
      .launch(launch, context.stream, arguments.data());
}

}  // namespace attn::cuda
