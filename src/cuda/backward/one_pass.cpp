#include "cuda/backward/one_pass.hpp"

#include <algorithm>
#include <array>

#include "core/ceil_div.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/counters.hpp"
#include "cuda/heuristics/backward_tiles.hpp"
#include "cuda/heuristics/one_pass_sizes.hpp"
#include "cuda/problem_parameters.hpp"
#include "cuda/tensor_map.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;
// Bytes of what tells tiles their turns (device/schedule/dq_turns.cuh), a multiple of 8.
core::Size turns_bytes(const Problem& p, const BackwardConfig& c) {
  if (!c.ordered) return 0;
  constexpr std::int64_t kTiles = 32, kTurnColumns = 128;
  const core::Size passed =
      core::divide_up(one_pass_rows(p, c), c.block_n) * ceil_div(p.head_dim, kTurnColumns);
  const core::Size seen = core::divide_up(key_blocks(p, c), kTiles) * query_blocks(p, c) *
                          (c.mask_heads ? p.heads_q : 1) * (c.mask_batches ? p.batch : 1);
  return core::round_up((passed + seen + 1) * 4, 8);
}

bool encode_rows(CUtensorMap& map, const Tensor& t, Layout layout, const Problem& p,
                 std::int64_t rows, std::int64_t heads, std::int64_t columns, int box) {
  const device::Strides s = strides_of(t, layout);
  const bool packed = layout == Layout::packed;
  return encode_map(
      map, t, 4,
      {unsigned_of(columns), unsigned_of(packed ? t.shape[0] : rows), unsigned_of(heads),
       unsigned_of(packed ? 1 : p.batch), 1},
      {unsigned_of(s.row), unsigned_of(s.head), unsigned_of(packed ? s.row : s.batch), 0, 0},
      {kMapPanel, static_cast<std::uint32_t>(box), 1, 1, 1});
}

void launch(const Kernel& kernel, std::int64_t blocks, std::int64_t threads, void** arguments,
            const Context& context, bool dependent) {
  LaunchConfig config;
  config.programmatic_dependent_launch = dependent;
  config.grid[0] = blocks;
  config.block = static_cast<unsigned>(threads);
  kernel.launch(config, context.stream, arguments);
}

}  // namespace

std::optional<BackwardMaps> backward_maps(const Problem& p, const BackwardConfig& config,
                                          const Inputs& inputs, const Tensor& d_o) {
  BackwardMaps maps{};
  const bool of_keys = config.gradient == device::Gradient::all;  // rows of its tiles
  const int query_rows = of_keys ? config.block_n : config.block_m;
  const int key_rows = of_keys ? config.block_m / config.cluster : config.block_n;
  const auto queries = [&](CUtensorMap& map, const Tensor& t, std::int64_t columns) {
    return encode_rows(map, t, p.layout_q, p, p.seqlen_q, p.heads_q, columns, query_rows);
  };
  const auto keys = [&](CUtensorMap& map, const Tensor& t, std::int64_t columns) {
    return encode_rows(map, t, p.layout_k, p, p.seqlen_k, p.heads_k, columns, key_rows);
  };
  if (queries(maps.q, inputs.q, p.head_dim) && queries(maps.d_o, d_o, p.head_dim_v) &&
      keys(maps.k, inputs.k, p.head_dim) && keys(maps.v, inputs.v, p.head_dim_v)) {
    return maps;
  }
  return std::nullopt;
}

core::Size one_pass_workspace(const Problem& p, const BackwardConfig& config) {
  // dQ, LSE and D, each of whole blocks of 64 rows: multiples of 128 bytes.
  return one_pass_rows(p, config) * (4 * p.head_dim + 8) + turns_bytes(p, config) +
         one_pass_words(p, config) * static_cast<std::int64_t>(sizeof(device::QueryWord));
}

OnePassPlaces one_pass_places(const Problem& p, const BackwardConfig& config) {
  const std::int64_t rows = one_pass_rows(p, config).value();
  OnePassPlaces places;
  places.lse2 = rows * p.head_dim * static_cast<std::int64_t>(sizeof(float));
  places.d = places.lse2 + rows * static_cast<std::int64_t>(sizeof(float));
  places.query_words =
      places.d + rows * static_cast<std::int64_t>(sizeof(float)) + turns_bytes(p, config).value();
  return places;
}

void place_one_pass(device::BackwardParams& to, const OnePassPlaces& places, std::byte* at) {
  to.dq_sum = reinterpret_cast<float*>(at);
  to.lse2 = reinterpret_cast<float*>(at + places.lse2);
  to.d = reinterpret_cast<float*>(at + places.d);
  to.query_words = reinterpret_cast<device::QueryWord*>(at + places.query_words);
}

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
                               (config.mask_heads ? p.heads_q : 1) *
                               (config.mask_batches ? p.batch : 1);
    launch(*kernels.words, ceil_div(words * kWordThreads, kWordsThreads), kWordsThreads,
           arguments.data(), context, dependent);
  }
  LaunchConfig main;
  main.grid[0] = p.num_tiles;
  if (config.kernel == BackwardKernel::sm90) {  // its blocks of threads stay
    const int clusters = device.sm_count / config.cluster;
    main.grid[0] = static_cast<std::int64_t>(std::min(p.num_tiles, clusters)) * config.cluster;
    main.cluster = static_cast<unsigned>(config.cluster);
    if (p.num_tiles > clusters && !config.ordered) p.counter = work_counter(context.stream);
  }
  main.block = static_cast<unsigned>(config.threads());
  main.programmatic_dependent_launch = dependent;
  main.shared_bytes = static_cast<unsigned>(config.shared_bytes());
  kernels.main->launch(main, context.stream, arguments.data());
  if (p.dq != nullptr) {
    launch(*kernels.dq, places, kDqThreads, arguments.data(), context, dependent);
  }
}

}  // namespace attn::cuda
