#include "cuda/matmul/matmul_sm90.hpp"

#include <algorithm>
#include <array>

#include "core/ceil_div.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

// Blocks of clusters that run at once: a cluster lies in one group of 14 to 18 multiprocessors, so
// some stay empty. 66 clusters of two fit 132 of them; 16 of eight did not, 12 did.
std::int64_t blocks_at_once(std::int64_t cluster, int sm_count) {
  const std::int64_t usable = cluster <= 2 ? sm_count : sm_count * std::int64_t{4} / 5;
  return std::max<std::int64_t>(1, usable / cluster) * cluster;
}

}  // namespace

bool streams_b(std::int64_t n, std::int64_t k, std::int64_t element_bytes, std::int64_t m_tiles) {
  constexpr double kL2 = 48e6;
  return m_tiles == 1 && static_cast<double>(n) * static_cast<double>(k * element_bytes) > kL2;
}

// Shared memory bounds rows and columns, (rows + columns) * 128 bytes a stage; registers bound the
// columns: half of them sums in each thread. Splits divide the columns in multiples of 8. Row-major
// B comes in panels of 64 columns; tiles of other columns take panels that begin between lines of
// memory, so 64 x 96 takes longer than 64 x 128 there (15.3 and 11.4 us at 1024 x 768 x 3072).
std::span<const MatmulSm90Shape> matmul_sm90_shapes() {
  using enum MatmulRung;
  static constexpr std::array<MatmulSm90Shape, 27> kShapes{{
      {persistent,
       {128, 256, 1},
       "85 flops a byte of L2: products that fill the machine many times"},
      {persistent,
       {128, 320, 1},
       "512 x 10240 is 128 tiles, one wave: 0.98 of cuBLAS, in 128 x 160 0.90"},
      {persistent, {128, 192, 1}, "a third more tiles: 3072 x 3072 is 384, 2.9 waves and not 2.2"},
      {persistent, {128, 224, 1}, "512 x 28672 is 512 tiles, 3.9 waves: 1.03 of cuBLAS"},
      {persistent, {128, 144, 1}, "1024 x 2304 is 128 tiles and not 96: 0.94 of cuBLAS, not 0.85"},
      {persistent, {128, 128, 1}, "twice the tiles, 64 flops a byte"},
      {persistent, {64, 256, 1}, "m up to 64, or twice the tiles with few rows"},
      {persistent, {64, 192, 1}, "as 64 x 256, for n in thirds"},
      {persistent, {64, 128, 1}, "1024 x 1024 is 128 tiles: 1.12 of cuBLAS, in two parts 0.73"},
      {persistent,
       {64, 96, 1},
       "64 x 12288 is 128 tiles: of 8-bit floats 1.04 of cuBLAS, in 64 x 192 0.91"},
      {persistent, {128, 64, 1}, "as 64 x 128, for tall matrices"},
      {persistent, {64, 64, 1}, "small products: 1.31 of cuBLAS at 512^3"},
      {cluster_multicast, {128, 256, 1}, "128 flops a byte of L2, pairs of rows of tiles"},
      {cluster_multicast,
       {128, 128, 1},
       "the same of 8-bit floats, whose sums take twice the registers"},
      {split_k, {128, 256, 2}, "32 to 66 tiles of very long k"},
      {split_k, {128, 256, 4}, "up to 26 tiles of very long k"},
      {split_k, {128, 128, 2}, "up to 66 tiles of long k"},
      {split_k, {128, 128, 4}, "up to 26 tiles"},
      {split_k, {128, 64, 2}, "up to 66 tiles; half the sums to send"},
      {split_k, {64, 256, 8}, "up to 13 tiles, m up to 64"},
      {split_k, {64, 192, 4}, "up to 26 tiles, m up to 64"},
      {split_k, {64, 128, 4}, "up to 26 tiles: 1.09 of cuBLAS at 64 x 3072 x 3072"},
      {split_k, {64, 128, 2}, "up to 66 tiles: 128 x 4096"},
      {split_k, {64, 64, 2}, "up to 66 tiles: 1.14 of cuBLAS at 64 x 3072 x 3072"},
      {split_k, {64, 64, 4}, "up to 26 tiles: 64 x 768, 1.16 of cuBLAS"},
      {stream_k, {128, 256, 1}, "the last wave of large products dealt evenly"},
      {stream_k, {128, 192, 1}, "the same of 8-bit floats"},
  }};
  return kShapes;
}

double matmul_sm90_cycles(const MatmulSizes& sizes, const MatmulSm90Shape& row, int sm_count) {
  const int rows = row.shape.rows, columns = row.shape.columns, splits = row.shape.splits;
  const bool multicast = row.rung == MatmulRung::cluster_multicast;
  const std::int64_t cluster = multicast ? 2 : splits;
  const std::int64_t tiles = sizes.batch * ceil_div(ceil_div(sizes.m, rows), multicast ? 2 : 1) *
                             (multicast ? 2 : 1) * ceil_div(sizes.n, columns);
  const std::int64_t stages = ceil_div(ceil_div(sizes.k, sizes.depth), splits);
  const std::int64_t at_once = std::min(tiles * splits, blocks_at_once(cluster, sm_count));
  const auto waves = static_cast<double>(ceil_div(tiles * splits, at_once));
  const double area = static_cast<double>(rows) * columns;
  // A stage: 128 bytes of each row and column at what L2 gives a multiprocessor, less where it
  // lasts for several waves, and flops at the tensor cores' rate. This and what follows fits the
  // times of bench/results/h200-matmul-shapes.json.
  const bool float8 = sizes.depth == 128;  // 4096^3: 111 us in 128 x 128, 116 in 128 x 192
  // Panels that begin between lines of 128 bytes, and the last one of a tile whole: two lines for
  // each of their rows, at 85 bytes a cycle.
  const bool between_lines = sizes.panels_b && columns % 64 != 0;
  const double l2_bytes = between_lines ? 85 : waves > 1 && !float8 ? 48 : 64;
  // Multicast halves what is fetched of B, but 4096^3 takes no less time, and 64 x 128 at 1024 x
  // 768 x 3072 takes 1.15 times as long, so nothing for it here.
  const double fetched =
      rows + static_cast<double>(between_lines ? 2 * ceil_div(columns, 64) * 64 : columns);
  // 8-bit floats in 144 columns take a tenth more than their products say: 862 us at 8192^3, where
  // 192 columns take 783.
  const double per_product = float8 && columns > 128 && columns % 64 != 0 ? 1.1 : 1;
  double stage = std::max(fetched * 128 / l2_bytes, area / 32 * per_product);
  // What comes from memory comes at 46 bytes a cycle to a multiprocessor whose neighbour stands
  // still, at 60 to both, which share a way to L2, and at 2400 to all: 64 x 12288 x 4096 takes 28
  // us in 64 tiles of 192 columns, which lie on as many pairs, and 33 us in 96 of 128.
  double from_memory = 0;
  if (streams_b(sizes.n, sizes.k, 128 / sizes.depth, ceil_div(sizes.m, rows))) {
    constexpr double kAlone = 46, kPair = 60, kMemory = 2400;
    const bool alone = 2 * at_once <= sm_count;
    stage = std::max(stage, fetched * 128 / (alone ? kAlone : kPair / 2));
    const std::int64_t bytes = sizes.n * sizes.k * 128 / sizes.depth;
    from_memory = static_cast<double>(bytes) / kMemory;
  }
  const double products = static_cast<double>(stages) * stage;
  // A launch, the first loads, and a tile's end: once, as blocks that stay hide it behind the next
  // tile, or a wave of those that do not.
  constexpr double kStart = 3000, kEnd = 0.18;
  const double once = kStart + kEnd * area;
  if (row.rung == MatmulRung::stream_k) {
    // Steps dealt evenly, out of the order that shares L2 (512 x 28672 x 8192: 352 us, 327 in tiles
    // of 128 x 224); flags are cleared, sums go to memory and back.
    constexpr double kFlags = 20000, kOutAndBack = 0.6, kOutOfOrder = 1.1;
    const double even = static_cast<double>(tiles) / sm_count;
    return once + kFlags + kOutAndBack * area +
           std::max(from_memory, even * products * kOutOfOrder);
  }
  if (splits == 1) return once + std::max(from_memory, waves * products);
  // Two barriers of a cluster, and the sums that a block sends.
  constexpr double kMeet = 1000, kSent = 0.13;
  const double meet = kMeet + kSent * area * 4 * (splits - 1) / splits;
  return waves * (once + meet) + std::max(from_memory, waves * products);
}

const MatmulSm90Shape& choose_matmul_sm90(const MatmulSizes& sizes, MatmulRung rung, bool any,
                                          int sm_count, const MatmulTileLimits& limits) {
  const std::span<const MatmulSm90Shape> shapes = matmul_sm90_shapes();
  const auto cost = [&](const MatmulSm90Shape& row) {
    if ((!any && row.rung != rung) || !limits.take(row.shape)) return 1e300;
    return matmul_sm90_cycles(sizes, row, sm_count);
  };
  return *std::min_element(shapes.begin(), shapes.end(),
                           [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
}

}  // namespace attn::cuda
