#include "cuda/matmul/matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "attn/error.hpp"
#include "core/matmul.hpp"
#include "core/tensor/size.hpp"
#include "cuda/device/matmul/params.cuh"
#include "cuda/driver/device.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/limits.hpp"
#include "cuda/matmul/config.hpp"
#include "cuda/tensor_map.hpp"

namespace attn::cuda {
namespace {

using core::MatmulOperands, core::MatrixView;

struct alignas(64) Maps {
  CUtensorMap a, b, c;
};

core::Size num_tiles(const MatmulProblem& p, const MatmulConfig& c) {
  const bool swapped = p.order_c == MatrixOrder::column_major;
  return core::divide_up(core::Size(swapped ? p.n : p.m), c.block_m) *
         core::divide_up(core::Size(swapped ? p.m : p.n), c.block_n).value() * p.batch;
}

core::Size workspace_of(const MatmulProblem& p, const MatmulConfig& c) {
  if (c.rung != MatmulRung::split_k) return 0;
  return core::Size(p.batch) * p.m * p.n * c.splits * 4;
}

// To 16 bytes: the address, and all strides but the one of neighbours.
bool aligned(const MatrixView& x) {
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  const auto fits = [&](std::int64_t stride) { return stride == 1 || stride * bytes % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && fits(x.row_stride) &&
         fits(x.column_stride) && fits(x.batch_stride) &&
         std::max(x.row_stride, x.column_stride) * bytes % 16 == 0;
}

// Blocks of threads: persistent ones stay, one on each multiprocessor.
std::int64_t blocks_of(const MatmulConfig& c, std::int64_t tiles, int sm_count) {
  if (c.rung == MatmulRung::persistent) return std::min<std::int64_t>(tiles, sm_count);
  return tiles * c.splits;
}

device::MatmulParams parameters_of(const MatmulOperands& o, const MatmulConfig& c,
                                   const Tensor& workspace) {
  device::MatmulParams p{};
  p.a = o.a.data;
  p.b = o.b.data;
  p.c = o.c.data;
  p.bias = o.bias;
  p.bias_stride = o.bias_stride;
  p.partial = static_cast<float*>(workspace.data);
  p.a_batch = o.a.batch_stride;
  p.a_row = o.a.row_stride;
  p.a_step = o.a.column_stride;
  p.b_batch = o.b.batch_stride;
  p.b_step = o.b.row_stride;
  p.b_column = o.b.column_stride;
  p.c_batch = o.c.batch_stride;
  p.c_row = o.c.row_stride;
  p.m = static_cast<int>(o.m);
  p.n = static_cast<int>(o.n);
  p.k = static_cast<int>(o.k);
  p.batch = static_cast<int>(o.batch);
  p.m_tiles = static_cast<int>((o.m + c.block_m - 1) / c.block_m);
  p.n_tiles = static_cast<int>((o.n + c.block_n - 1) / c.block_n);
  // 132 multiprocessors then work on about 16 x 8 tiles of 128 x 256, whose rows of A and columns
  // of B are as many bytes.
  constexpr int kGroup = 16;
  p.group = kGroup;
  p.splits = c.splits;
  const std::int64_t part = (o.k + c.splits - 1) / c.splits;
  p.steps_per_split = static_cast<int>((part + c.block_k - 1) / c.block_k * c.block_k);
  return p;
}

// An operand: `lanes` rows of A or columns of B, k steps. box_lanes: of a tile.
bool encode_operand(CUtensorMap& map, const MatrixView& x, std::int64_t lanes, std::int64_t k,
                    std::int64_t batch, std::int64_t lane_stride, std::int64_t step_stride,
                    bool steps_together, int box_lanes) {
  const Tensor t = tensor(static_cast<const void*>(x.data), x.dtype, {1});
  const std::int64_t across = steps_together ? k : lanes, down = steps_together ? lanes : k;
  const std::int64_t ld = steps_together ? lane_stride : step_stride;
  const bool shared = x.batch_stride == 0;
  const std::uint64_t next = unsigned_of(shared ? ld : x.batch_stride);
  return encode_map(
      map, t, 4, {unsigned_of(across), unsigned_of(down), unsigned_of(shared ? 1 : batch), 1, 1},
      {unsigned_of(ld), next, next, 0, 0},
      {kMapPanel, static_cast<std::uint32_t>(steps_together ? box_lanes : 64), 1, 1, 1});
}

std::optional<Maps> maps_of(const MatmulOperands& o, const MatmulConfig& c) {
  Maps maps{};
  const bool encoded = encode_operand(maps.a, o.a, o.m, o.k, o.batch, o.a.row_stride,
                                      o.a.column_stride, c.steps_together_a, c.block_m) &&
                       encode_operand(maps.b, o.b, o.n, o.k, o.batch, o.b.column_stride,
                                      o.b.row_stride, c.steps_together_b, c.block_n) &&
                       // Of C a warp writes 16 rows at once.
                       (!c.stores_boxes || encode_operand(maps.c, o.c, o.m, o.n, o.batch,
                                                          o.c.row_stride, 1, true, 16));
  if (!encoded) return std::nullopt;
  return maps;
}

void launch_split_sum(const MatmulPlan& plan, const Source& source, device::MatmulParams& p,
                      const Context& context) {
  LaunchConfig launch;
  launch.block = 256;
  constexpr std::int64_t kMostBlocksAtOnce = 1 << 12;
  const double size = static_cast<double>(p.m) * p.n * p.batch / launch.block;
  launch.grid[0] =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(size) + 1, 1, kMostBlocksAtOnce);
  std::array<void*, 1> arguments{&p};
  get_kernel(plan.device.index, source, context)->launch(launch, context.stream, arguments.data());
}

}  // namespace

MatmulPlan plan_matmul(const MatmulProblem& problem, const MatmulOptions& options) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = arch_of_capability(device.arch);
  const MatmulConfig c = choose_matmul(problem, arch, options.rung, {}, device.sm_count);
  MatmulPlan plan;
  plan.problem = problem;
  plan.backend = Backend::cuda;
  plan.rung = name(c.rung);
  plan.compute = problem.dtype;
  plan.block_m = c.block_m;
  plan.block_n = c.block_n;
  plan.block_k = c.block_k;
  plan.splits = c.splits;
  const core::Size tiles = num_tiles(problem, c), workspace = workspace_of(problem, c);
  if (tiles * c.splits > core::Size(kMostBlocks) || !workspace.fits()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the product has {} tiles; accepted are {} (problem {})",
                            core::to_string(tiles * c.splits), kMostBlocks, to_string(problem)));
  }
  plan.tasks = tiles.value() * c.splits;
  plan.workspace_bytes = workspace.value();
  plan.launch.kernel = fmt::format("matmul_{}", plan.rung);
  plan.launch.arch = to_string(arch);
  plan.launch.grid = {blocks_of(c, tiles.value(), device.sm_count), 1, 1};
  plan.launch.threads = c.threads;
  plan.launch.shared_bytes = c.shared_bytes;
  plan.launch.stages = c.stages;
  if (options.rung.empty()) {
    plan.reasons.push_back(c.splits > 1
                               ? fmt::format("{} parts of k: {} tiles alone leave most of {} "
                                             "multiprocessors idle",
                                             c.splits, tiles.value(), device.sm_count)
                               : "the last rung that takes the problem");
  }
  return plan;
}

void matmul(const MatmulPlan& plan, const MatmulInputs& inputs, const Tensor& c_tensor,
            const Context& context) {
  const MatmulProblem& p = plan.problem;
  if (p.batch == 0 || p.m == 0 || p.n == 0) return;
  const int ordinal = plan.device.index;
  const ContextGuard guard(ordinal);
  const DeviceInfo& device = device_info(ordinal);
  const Arch arch = arch_of_capability(device.arch);
  const MatmulOperands operands(p, inputs, c_tensor);
  MatmulTensors facts{.aligned = aligned(operands.a) && aligned(operands.b),
                      .aligned_c = aligned(operands.c)};
  const auto choose = [&] {
    MatmulConfig config = choose_matmul(p, arch, plan.rung, facts, device.sm_count, true);
    if (config.rung == MatmulRung::split_k) config.splits = plan.splits;
    return config;
  };
  MatmulConfig c = choose();
  std::optional<Maps> maps;
  if (c.groups > 0) {
    maps = maps_of(operands, c);
    if (!maps) {  // strides past what the copy engine knows
      facts.aligned = false;
      c = choose();
    }
  }
  device::MatmulParams parameters = parameters_of(operands, c, context.workspace);
  const std::vector<Source> sources = matmul_sources(c);
  LaunchConfig launch;
  launch.grid[0] = blocks_of(c, num_tiles(p, c).value(), device.sm_count);
  launch.block = static_cast<unsigned>(c.threads);
  launch.shared_bytes = static_cast<unsigned>(c.shared_bytes);
  std::array<void*, 2> arguments{&parameters, maps ? &*maps : nullptr};
  get_kernel(ordinal, sources.front(), context)->launch(launch, context.stream, arguments.data());
  if (sources.size() > 1) launch_split_sum(plan, sources[1], parameters, context);
}

}  // namespace attn::cuda
