#include "cuda/backward/one_pass.hpp"

#include <algorithm>
#include <array>

#include "core/ceil_div.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/counters.hpp"
#include "cuda/kernels/backward_one_pass/sizes.hpp"
#include "cuda/kernels/backward_tiles.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

void launch(const Kernel& kernel, std::int64_t blocks, std::int64_t threads, void** arguments,
            const Context& context, bool dependent) {
  LaunchConfig config;
  config.programmatic_dependent_launch = dependent;
  config.grid[0] = blocks;
  config.block = static_cast<unsigned>(threads);
  kernel.launch(config, context.stream, arguments);
}

}  // namespace

void set_one_pass_parameters(device::BackwardParams& to, const Problem& p,
                             const BackwardConfig& config) {
  to.query_blocks = static_cast<int>(query_blocks(p, config));
  to.query_windows = static_cast<int>(ceil_div(to.query_blocks, kWordBlocks));
  to.key_blocks = static_cast<int>(key_blocks(p, config));
  to.group = static_cast<int>(p.heads_q / p.heads_k);
  to.heads_at_once = heads_at_once(p, config);
  to.num_tiles = static_cast<int>(num_tiles(p, config).value());
  to.counter = device::kNoCounter;
}

void launch_one_pass(const OnePassKernels& kernels, const BackwardConfig& config,
                     const DeviceInfo& device, device::BackwardParams& parameters,
                     BackwardMaps* maps, std::byte* expressions, std::byte* slope,
                     const Context& context) {
  device::BackwardParams& p = parameters;
  const std::int64_t places = std::int64_t{p.query_blocks} * p.heads_q * p.batch;
  if (places == 0 || p.num_tiles == 0) return;
  const bool dependent = device.arch >= 90;
  std::array<void*, 4> arguments{&p, expressions, slope, maps};
  launch(*kernels.rows,
         ceil_div(places * kPlaceQueries * backward_row_threads(config), kRowsThreads),
         kRowsThreads, arguments.data(), context, false);
  if (kernels.words != nullptr) {
    const std::int64_t words = std::int64_t{p.query_windows} * p.key_blocks *
                               (config.features.mask_heads ? p.heads_q : 1) *
                               (config.features.mask_batches ? p.batch : 1);
    launch(*kernels.words, ceil_div(words * kWordThreads, kWordsThreads), kWordsThreads,
           arguments.data(), context, dependent);
  }
  LaunchConfig main;
  main.grid[0] = p.num_tiles;
  if (config.kernel->stays) {
    const int clusters = device.sm_count / config.tiling.cluster;
    main.grid[0] =
        static_cast<std::int64_t>(std::min(p.num_tiles, clusters)) * config.tiling.cluster;
    main.cluster = static_cast<unsigned>(config.tiling.cluster);
    if (p.num_tiles > clusters && !config.ordered) p.counter = work_counter(context.stream);
  }
  main.block = static_cast<unsigned>(config.tiling.threads());
  main.programmatic_dependent_launch = dependent;
  main.shared_bytes = static_cast<unsigned>(config.tiling.shared_bytes);
  kernels.main->launch(main, context.stream, arguments.data());
  if (p.dq != nullptr) {
    launch(*kernels.dq, places, kDqThreads, arguments.data(), context, dependent);
  }
}

}  // namespace attn::cuda
