#include "cuda/matmul/matmul_sm80.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/kernels/shared_memory.hpp"

namespace attn::cuda {
namespace {

constexpr int kLane = 32, kHalf = 2;
constexpr int kMostStages = 4;  // three are under way: 18 to 72 KB a block

int warp_rows(const MatmulShape& s) { return s.rows / warps_down_of(s); }
int warp_columns(const MatmulShape& s) { return s.columns / (s.warps / warps_down_of(s)); }

int stage_bytes(const MatmulShape& s) { return (s.rows + s.columns) * s.depth * kHalf; }

// Blocks that registers allow: 65,536 of 32 bits hold for each thread its sums, operands of two
// steps, and 32 for addresses: with 16 warps of 64 x 32, 128 registers each, some were spilled.
// Beyond 16 warps nothing is gained: a warp of 32 x 32 and more keeps its tensor core at work for a
// hundred cycles.
int blocks_by_registers(const MatmulShape& s) {
  constexpr int kRegisters = 65536, kBeside = 32, kMostWarps = 16;
  const int threads = kLane * s.warps;
  const int sums = s.rows * s.columns / threads;
  const int operands = (warp_rows(s) + warp_columns(s)) / 16 * 4;
  const int by_registers = kRegisters / (threads * (sums + 2 * operands + kBeside));
  return std::max(1, std::min(by_registers, kMostWarps / s.warps));
}

// Shared memory of a block, where so many share a multiprocessor.
std::int64_t shared_of_each(int blocks, Arch arch) {
  constexpr std::int64_t kKept = 1024;  // of each block, by the system
  return (most_shared_bytes(arch) + kKept) / blocks - kKept;
}

std::string text_of(const MatmulShape& s) {
  return fmt::format("{}x{}_w{}_k{}_r{}", s.rows, s.columns, s.warps, s.depth, s.stages);
}

}  // namespace

// A warp of R x C elements takes (R + C) * 32 bytes from shared memory for each 16 steps, and R C /
// 128 products: 64 x 64 is the most that 255 registers hold with operands of two steps. Tiles bound
// what comes from L2, (rows + columns) * 2 bytes a step. No row was timed on a GPU of another
// generation than Hopper.
std::span<const MatmulSm80Shape> matmul_sm80_shapes() {
  static constexpr std::array<MatmulSm80Shape, 6> kShapes{{
      {{128, 256, 1, 8, 0, 0},
       "85 flops a byte of L2 and 64 x 64 a warp: products that fill the machine many times; 64 "
       "steps of k where three stages fit: 2 % faster than 32 (H100)"},
      {{256, 128, 1, 8, 32, 0}, "the same where it covers C with fewer tiles"},
      {{128, 128, 1, 4, 32, 0},
       "64 x 64 a warp, 64 flops a byte of L2; two blocks share a multiprocessor, one begins or "
       "ends while the other multiplies"},
      {{128, 64, 1, 4, 32, 0}, "64 x 32 a warp: few tiles, three blocks a multiprocessor"},
      {{64, 128, 1, 4, 32, 0}, "the same for m up to 64"},
      {{64, 64, 1, 4, 32, 0}, "32 x 32 a warp: small products"},
  }};
  return kShapes;
}

int warps_down_of(const MatmulShape& s) {
  // The arrangement whose warps are nearest to squares; of two alike the taller warps.
  int best = 1;
  for (int down = 1; down <= s.warps; down *= 2) {
    const int rows = s.rows / down, columns = s.columns * down / s.warps;
    if (rows < 16 || columns < 16) continue;
    const int before = s.rows / best + s.columns * best / s.warps;
    if (rows + columns < before) best = down;
  }
  return best;
}

std::int64_t ring_bytes_of(const MatmulShape& s) { return std::int64_t{s.stages} * stage_bytes(s); }

int blocks_of(const MatmulShape& s, Arch arch) {
  int blocks = blocks_by_registers(s);
  while (blocks > 1 && ring_bytes_of(s) > shared_of_each(blocks, arch)) --blocks;
  return blocks;
}

MatmulShape complete_matmul_sm80(MatmulShape s, Arch arch) {
  const auto rows = matmul_sm80_shapes();
  const auto row = std::ranges::find_if(rows, [&](const MatmulSm80Shape& r) {
    return r.shape.rows == s.rows && r.shape.columns == s.columns;
  });
  const bool known = row != rows.end();
  if (s.warps == 0) s.warps = known ? row->shape.warps : s.rows * s.columns > 128 * 128 ? 8 : 4;
  // Three at least, so that copies of one tile are under way while another's arrive, or fewer
  // blocks, or fewer steps.
  constexpr int kLeastStages = 3, kShallow = 32;
  if (s.depth == 0) s.depth = known ? row->shape.depth : kShallow;
  if (s.depth == 0) {
    s.depth = 2 * kShallow;
    const int stages = s.stages != 0 ? s.stages : kLeastStages;
    if (stages * stage_bytes(s) > most_shared_bytes(arch)) s.depth = kShallow;
  }
  if (s.stages != 0) return s;
  for (int blocks = blocks_by_registers(s); blocks > 0; --blocks) {
    s.stages = static_cast<int>(
        std::min<std::int64_t>(kMostStages, shared_of_each(blocks, arch) / stage_bytes(s)));
    if (s.stages >= kLeastStages) break;
  }
  return s;
}

std::string refuse_matmul_sm80(const MatmulShape& s, Arch arch) {
  constexpr std::array kSides{64, 128, 256};
  constexpr int kMostSums = 128, kMostRing = 8;
  const auto is_side = [&](int x) { return std::ranges::find(kSides, x) != kSides.end(); };
  const bool warps = (s.warps == 4 || s.warps == 8) && s.splits == 1;
  const bool ring = (s.depth == 32 || s.depth == 64) && s.stages >= 2 && s.stages <= kMostRing;
  if (is_side(s.rows) && is_side(s.columns) && warps && ring &&
      s.rows * s.columns <= kMostSums * kLane * s.warps &&
      ring_bytes_of(s) <= most_shared_bytes(arch)) {
    return {};
  }
  return fmt::format(
      "shape {} of rung pipelined; accepted on {} are 64, 128 or 256 rows and columns, 4 or 8 "
      "warps of up to 64 x 64 elements each, 32 or 64 steps of k, and a ring of 2 to 8 stages in "
      "{} bytes of shared memory",
      text_of(s), to_string(arch), most_shared_bytes(arch));
}

double matmul_sm80_cycles(const MatmulSizes& sizes, const MatmulShape& s, Arch arch, int sm_count) {
  const auto over = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t tiles = sizes.batch * over(sizes.m, s.rows) * over(sizes.n, s.columns);
  const double area = static_cast<double>(s.rows) * s.columns;
  // A step: multiply-adds at the tensor cores' rate (1024 a cycle on an A100, half of it and less
  // on GPUs with less shared memory), operands of all warps and the copies' stores in shared
  // memory, and what comes from L2.
  constexpr double kShared = 128, kL2 = 48;
  constexpr std::int64_t kLessShared = 99 << 10;
  const double rate = most_shared_bytes(arch) > kLessShared ? 1024 : 512;
  const double fetched = static_cast<double>(kHalf) * (s.rows + s.columns);
  const double read = static_cast<double>(kHalf) * s.warps * (warp_rows(s) + warp_columns(s));
  const double step = std::max({area / rate, (fetched + read) / kShared, fetched / kL2});
  // A launch, the first loads and the end of a tile: half of it where another block of the
  // multiprocessor multiplies meanwhile.
  constexpr double kStart = 2500, kEnd = 0.06;
  const int blocks = blocks_of(s, arch);
  const double around = (kStart + kEnd * area) * (blocks > 1 ? 0.5 : 1);
  // Blocks of a multiprocessor share its tensor cores, which fewer than eight warps do not fill.
  // Two blocks of four warps were 3 to 6 % slower than one of eight (H100, 4096^3 and 8192^3).
  const double apart = blocks > 1 ? 1.04 : 1;
  const auto round = [&](std::int64_t shared_by) {
    constexpr double kFull = 8;
    const double warps = static_cast<double>(shared_by) * s.warps;
    const double share = std::sqrt(std::min(1.0, warps / kFull));
    return around + static_cast<double>(shared_by * sizes.k) * step * apart / share;
  };
  const std::int64_t at_once = std::int64_t{sm_count} * blocks;
  const std::int64_t whole = tiles / at_once, left = tiles % at_once;
  return static_cast<double>(whole) * round(blocks) + (left > 0 ? round(over(left, sm_count)) : 0);
}

const MatmulSm80Shape& choose_matmul_sm80(const MatmulSizes& sizes, Arch arch, int sm_count,
                                          const MatmulTileLimits& limits) {
  const auto cost = [&](const MatmulSm80Shape& row) {
    if (!limits.take(row.shape)) return 1e300;
    return matmul_sm80_cycles(sizes, complete_matmul_sm80(row.shape, arch), arch, sm_count);
  };
  const auto rows = matmul_sm80_shapes();
  return *std::ranges::min_element(rows,
                                   [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
}

}  // namespace attn::cuda
