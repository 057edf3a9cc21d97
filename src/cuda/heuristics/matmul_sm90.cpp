#include "cuda/heuristics/matmul_sm90.hpp"

#include <algorithm>
#include <array>

namespace attn::cuda {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Blocks of clusters that run at once: a cluster lies in one group of 16 or 18 multiprocessors, so
// 132 of them hold 66 clusters of two, and 32 of four.
std::int64_t blocks_at_once(std::int64_t cluster, int sm_count) {
  constexpr std::int64_t kGroup = 16;
  if (cluster <= 2) return std::max<std::int64_t>(1, sm_count / cluster) * cluster;
  return std::max<std::int64_t>(1, sm_count / kGroup * (kGroup / cluster)) * cluster;
}

}  // namespace

// Shared memory bounds rows and columns, (rows + columns) * 128 bytes a stage; registers bound the
// columns: half of them sums in each thread. Splits divide the columns in multiples of 8. Row-major
// B comes in panels of 64 columns.
std::span<const MatmulSm90Shape> matmul_sm90_shapes() {
  using enum MatmulRung;
  static constexpr std::array<MatmulSm90Shape, 20> kShapes{{
      {persistent,
       {128, 256, 1},
       "85 flops a byte of L2: products that fill the machine many times"},
      {persistent, {128, 192, 1}, "n 2304 or 768 in whole tiles, a third more of them"},
      {persistent, {128, 128, 1}, "twice the tiles, 64 flops a byte"},
      {persistent, {64, 256, 1}, "m up to 64, or twice the tiles with few rows"},
      {persistent, {64, 192, 1}, "as 64 x 256, for n in thirds"},
      {persistent, {64, 128, 1}, "four times the tiles: 1024 x 1024 is 128 of them"},
      {persistent, {64, 64, 1}, "small products: latency counts, not flops a byte"},
      {cluster_multicast, {128, 256, 1}, "128 flops a byte of L2, pairs of rows of tiles"},
      {split_k, {128, 256, 2}, "32 to 66 tiles"},
      {split_k, {128, 256, 4}, "16 to 32 tiles of long k"},
      {split_k, {128, 128, 2}, "33 to 66 tiles: 1024^3 is 64"},
      {split_k, {128, 128, 4}, "17 to 32 tiles"},
      {split_k, {128, 128, 8}, "up to 16 tiles"},
      {split_k, {64, 256, 8}, "m up to 64, n 4096"},
      {split_k, {64, 192, 8}, "m up to 64, n 3072: 16 tiles, 128 blocks"},
      {split_k, {64, 192, 4}, "m up to 64, n 6144"},
      {split_k, {64, 128, 4}, "m up to 64, n 3072: 24 tiles, 96 blocks"},
      {split_k, {64, 128, 2}, "m up to 64, n 8192"},
      {split_k, {64, 64, 4}, "m up to 64, n 2048"},
      {stream_k, {128, 256, 1}, "the last wave of large products dealt evenly"},
  }};
  return kShapes;
}

double matmul_sm90_cycles(const MatmulSizes& sizes, const MatmulSm90Shape& row, int sm_count) {
  const auto [rows, columns, splits] = row.shape;
  const bool multicast = row.rung == MatmulRung::cluster_multicast;
  const std::int64_t cluster = multicast ? 2 : splits;
  const std::int64_t tiles = sizes.batch * divide_up(divide_up(sizes.m, rows), multicast ? 2 : 1) *
                             (multicast ? 2 : 1) * divide_up(sizes.n, columns);
  const std::int64_t stages = divide_up(divide_up(sizes.k, sizes.depth), splits);
  const std::int64_t at_once = std::min(tiles * splits, blocks_at_once(cluster, sm_count));
  const auto waves = static_cast<double>(divide_up(tiles * splits, at_once));
  const double area = static_cast<double>(rows) * columns;
  // A stage: 128 bytes of each row and column, of which L2 gives all multiprocessors together 48 a
  // cycle each (measured: 40 at 791 TFLOP/s) and one alone 64; flops at the tensor cores' rate.
  constexpr double kShareOfL2 = 48, kMostOfL2 = 64, kFlops = 8192 * 2;
  const double rate = std::min(kMostOfL2, kShareOfL2 * sm_count / static_cast<double>(at_once));
  const double fetched = rows + (multicast ? columns / 2.0 : columns);
  const double stage = std::max(fetched * 128 / rate, area * 128 * 4 / kFlops);
  // A launch, the first loads, and a tile's end (two bytes an element at 32 a cycle): once, as
  // blocks that stay hide it behind the next tile, or a wave of those that do not. Where clusters
  // meet, sums travel at 32 bytes a cycle, and two barriers are waited for.
  constexpr double kStart = 2000, kMeet = 800, kBytesOut = 32;
  const double once = kStart + area * 2 / kBytesOut;
  const double products = static_cast<double>(stages) * stage;
  if (row.rung == MatmulRung::stream_k) {
    // Steps dealt evenly, out of the order that shares L2; sums go to memory and back.
    constexpr double kFlags = 3000, kOutOfOrder = 1.03;
    const double even = static_cast<double>(tiles) / sm_count;
    return once + kFlags + area * 8 / kBytesOut + even * products * kOutOfOrder;
  }
  if (splits == 1) return once + waves * products;
  const double meet = kMeet + area * 4 * (splits - 1) / splits / kBytesOut;
  return waves * (once + meet + products);
}

const MatmulSm90Shape& choose_matmul_sm90(const MatmulSizes& sizes, MatmulRung rung, bool any,
                                          int sm_count) {
  const std::span<const MatmulSm90Shape> shapes = matmul_sm90_shapes();
  const auto cost = [&](const MatmulSm90Shape& row) {
    if (!any && row.rung != rung) return 1e300;
    return matmul_sm90_cycles(sizes, row, sm_count);
  };
  return *std::min_element(shapes.begin(), shapes.end(),
                           [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
}

}  // namespace attn::cuda
