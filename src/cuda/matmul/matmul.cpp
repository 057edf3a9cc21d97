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
#include "cuda/driver/api.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/jit/kernels_by_key.hpp"
#include "cuda/limits.hpp"
#include "cuda/matmul/choose_matmul.hpp"
#include "cuda/matmul/matmul_sm90.hpp"
#include "cuda/matmul/source.hpp"
#include "cuda/tensor_map.hpp"

namespace attn::cuda {
namespace {

using core::MatmulOperands, core::MatrixView;

struct alignas(64) Maps {
  CUtensorMap a, b, c;
};

// Tiles of C; those below each other of a cluster that has one B count as one.
core::Size num_tiles(const MatmulProblem& p, const MatmulConfig& c) {
  const bool swapped = p.order_c == MatrixOrder::column_major;
  return core::divide_up(core::Size(swapped ? p.n : p.m), std::int64_t{c.block_m} * c.multicast) *
         core::divide_up(core::Size(swapped ? p.m : p.n), c.block_n).value() * p.batch;
}

// The workspace of stream_k: sums of a tile for each block of threads, then flags.
std::int64_t partial_bytes(const MatmulConfig& c, int sm_count) {
  return std::int64_t{4} * c.block_m * c.block_n * sm_count;
}
std::int64_t workspace_of(const MatmulConfig& c, int sm_count) {
  if (c.rung != MatmulRung::stream_k) return 0;
  return partial_bytes(c, sm_count) + std::int64_t{4} * c.groups * sm_count;
}

// Refuses a plan that was changed by hand so that its product needs more than it says.
void check_workspace(const MatmulPlan& plan, const MatmulConfig& c, int sm_count) {
  const std::int64_t needed = workspace_of(c, sm_count);
  if (plan.workspace_bytes >= needed) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("workspace_bytes of the plan is {}; accepted is {} and more for {} in "
                          "tiles of {} x {}, as make_plan sets it (problem {})",
                          plan.workspace_bytes, needed, name(c.rung), c.block_m, c.block_n,
                          to_string(plan.problem)));
}

// Whether the address, and all strides but the one of neighbours, are multiples of 16 bytes.
bool aligned(const MatrixView& x) {
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  const auto fits = [&](std::int64_t stride) { return stride == 1 || stride * bytes % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && fits(x.row_stride) &&
         fits(x.column_stride) && fits(x.batch_stride) &&
         std::max(x.row_stride, x.column_stride) * bytes % 16 == 0;
}

// Blocks of threads: those that stay are one on each multiprocessor.
std::int64_t blocks_of(const MatmulConfig& c, std::int64_t tiles, int sm_count) {
  switch (c.rung) {
    case MatmulRung::persistent:
    case MatmulRung::cluster_multicast:
      return std::min<std::int64_t>(tiles, std::max(1, sm_count / c.multicast)) * c.multicast;
    case MatmulRung::stream_k:
      return sm_count;
    case MatmulRung::naive:
    case MatmulRung::coalesced:
    case MatmulRung::shared_tiles:
    case MatmulRung::register_tiles:
    case MatmulRung::vector_loads:
    case MatmulRung::mma_sync:
    case MatmulRung::cp_async:
    case MatmulRung::ldmatrix:
    case MatmulRung::pipelined:
    case MatmulRung::tma_wgmma:
    case MatmulRung::warp_specialised:
    case MatmulRung::split_k:
      break;
  }
  return tiles * c.splits;
}

LaunchConfig launch_of(const MatmulConfig& c, std::int64_t tiles, int sm_count) {
  LaunchConfig launch;
  launch.grid[0] = blocks_of(c, tiles, sm_count);
  launch.block = static_cast<unsigned>(c.threads);
  launch.shared_bytes = static_cast<unsigned>(c.shared_bytes);
  launch.cluster = static_cast<unsigned>(c.cluster());
  launch.programmatic_dependent_launch = c.groups > 0;
  return launch;
}

// Rows of tiles that are worked on together, so that they share L2; of a cluster those below each
// other count as one. With 12 of them 132 multiprocessors work on about 12 x 11 tiles of 128 x 256:
// with 16 x 8, whose rows of A and columns of B are as many bytes, 16384^3 takes 1 to 3 % longer,
// with 8 x 16 4096^3 0.7 %.
int group_of(const MatmulConfig& c, int m_tiles) {
  constexpr int kGroup = 12, kEvenGroup = 16, kGroupRows = 2048;
  // Tiles of all shapes then have as many rows together.
  if (c.rung == MatmulRung::pipelined) return kGroupRows / c.block_m;
  // One group, so that the place of a tile takes no division; and groups of unlike many blocks of a
  // mask are dealt there and back, which an even number of them ends evenly.
  const bool even = m_tiles * c.multicast <= kEvenGroup || c.masked != 0;
  return (even ? kEvenGroup : kGroup) / c.multicast;
}

device::MatmulParams parameters_of(const MatmulOperands& o, const MatmulConfig& c,
                                   const Tensor& workspace, std::int64_t tiles, int sm_count) {
  device::MatmulParams p{};
  p.a = o.a.data;
  p.b = o.b.data;
  p.c = o.c.data;
  p.bias = o.bias;
  p.bias_stride = o.bias_stride;
  p.mask = o.mask.data;
  p.mask_row = o.mask.row_stride;
  p.mask_column = o.mask.column_stride;
  p.scale_a = o.scale_a;
  p.scale_b = o.scale_b;
  if (c.rung == MatmulRung::stream_k) {
    auto* bytes = static_cast<std::byte*>(workspace.data);
    p.partial = reinterpret_cast<float*>(bytes);
    p.flags = reinterpret_cast<unsigned*>(bytes + partial_bytes(c, sm_count));
    // These are the tiles of all whole waves but one: what is left is at least a tile a block, and
    // less than two.
    p.whole_tiles = static_cast<int>(std::max<std::int64_t>(0, tiles / sm_count - 1) * sm_count);
  }
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
  const std::int64_t rows = std::int64_t{c.block_m} * c.multicast;
  p.m_tiles = static_cast<int>((o.m + rows - 1) / rows);
  p.n_tiles = static_cast<int>((o.n + c.block_n - 1) / c.block_n);
  p.group = group_of(c, p.m_tiles);
  p.streams_b =
      streams_b(o.n, o.k, static_cast<std::int64_t>(size_of(c.dtype)), p.m_tiles * c.multicast);
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
  return encode_map(map, t, 4,
                    {unsigned_of(across), unsigned_of(down), unsigned_of(shared ? 1 : batch), 1, 1},
                    {unsigned_of(ld), next, next, 0, 0},
                    {static_cast<std::uint32_t>(2 * kMapPanel / size_of(x.dtype)),
                     static_cast<std::uint32_t>(steps_together ? box_lanes : 64), 1, 1, 1});
}

std::optional<Maps> maps_of(const MatmulOperands& o, const MatmulConfig& c) {
  Maps maps{};
  const bool encoded =
      encode_operand(maps.a, o.a, o.m, o.k, o.batch, o.a.row_stride, o.a.column_stride,
                     c.steps_together_a, c.block_m) &&
      encode_operand(maps.b, o.b, o.n, o.k, o.batch, o.b.column_stride, o.b.row_stride,
                     c.steps_together_b,
                     c.block_n > kMostWgmmaColumns ? 64 : c.block_n / c.multicast) &&
      // A warp writes 16 rows of C at once.
      (!c.stores_boxes ||
       encode_operand(maps.c, o.c, o.m, o.n, o.batch, o.c.row_stride, 1, true, 16));
  if (!encoded) return std::nullopt;
  return maps;
}

void clear_flags(const device::MatmulParams& p, const MatmulConfig& c, int sm_count, void* stream) {
  check(api().cuMemsetD32Async(
            reinterpret_cast<CUdeviceptr>(p.flags), 0,
            static_cast<std::size_t>(c.groups) * static_cast<std::size_t>(sm_count),
            static_cast<CUstream>(stream)),
        "clearing the flags of stream_k");
}

}  // namespace

MatmulPlan plan_matmul(const MatmulProblem& problem, const MatmulOptions& options) {
  const DeviceInfo& device = device_info(options.device.index);
  const Arch arch = arch_of_capability(device.arch);
  const MatmulConfig c =
      choose_matmul(problem, arch, parse_matmul_request(options.rung), {}, device.sm_count);
  MatmulPlan plan;
  plan.problem = problem;
  plan.backend = Backend::cuda;
  plan.rung = name(c.rung);
  plan.compute = problem.dtype;
  plan.block_m = c.block_m;
  plan.block_n = c.block_n;
  plan.block_k = c.block_k;
  plan.splits = c.splits;
  const core::Size tiles = num_tiles(problem, c);
  if (tiles * c.splits * c.multicast > core::Size(kMostBlocks)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("the product has {} tiles; accepted are {} (problem {})",
                            core::to_string(tiles * c.splits * c.multicast), kMostBlocks,
                            to_string(problem)));
  }
  plan.tasks = tiles.value() * c.cluster();
  plan.workspace_bytes = workspace_of(c, device.sm_count);
  plan.launch.kernel = fmt::format("matmul_{}", plan.rung);
  plan.launch.arch = to_string(arch);
  const LaunchConfig launch = launch_of(c, tiles.value(), device.sm_count);
  plan.launch.grid = launch.grid;
  plan.launch.threads = c.threads;
  plan.launch.cluster = c.cluster();
  plan.launch.shared_bytes = c.shared_bytes;
  plan.launch.stages = c.stages;
  if (options.rung.empty()) {
    plan.reasons.emplace_back(c.reason.empty() ? "the last rung that takes the problem" : c.reason);
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
  MatmulRequest request{plan.rung, {plan.block_m, plan.block_n, plan.splits}};
  if (plan.rung == name(MatmulRung::pipelined)) {
    constexpr int kLane = 32;
    request.shape.warps = plan.launch.threads / kLane;
    request.shape.depth = plan.block_k;
    request.shape.stages = plan.launch.stages;
  }
  const auto choose = [&] { return choose_matmul(p, arch, request, facts, device.sm_count, true); };
  MatmulConfig c = choose();
  std::optional<Maps> maps;
  if (c.groups > 0) {
    maps = maps_of(operands, c);
    if (!maps) {  // strides past what the copy engine knows
      facts.aligned = false;
      c = choose();
    }
  }
  check_workspace(plan, c, device.sm_count);
  const std::int64_t tiles = num_tiles(p, c).value();
  device::MatmulParams parameters =
      parameters_of(operands, c, context.workspace, tiles, device.sm_count);
  if (c.rung == MatmulRung::stream_k) clear_flags(parameters, c, device.sm_count, context.stream);
  std::array<void*, 2> arguments{&parameters, maps ? &*maps : nullptr};
  kernels_by_key<MatmulConfig>()
      .get(ordinal, c, context, [&] { return matmul_source(c); })
      .launch(launch_of(c, tiles, device.sm_count), context.stream, arguments.data());
}

}  // namespace attn::cuda
