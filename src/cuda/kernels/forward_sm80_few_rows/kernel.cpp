#include "cuda/kernels/forward_sm80_few_rows/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "core/cache_type.hpp"
#include "core/ceil_div.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/kernels/shared_memory.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

struct Shape {
  int head_dim;  // up to this, of the larger of Q K's and V's
  int rows;      // up to these, of a K, V head
  int warps, keys, stages;
  std::string_view reason;
};

// A multiprocessor of Hopper has to have some 32 KB on their way to read at full speed. Registers
// of a thread hold Q (head_dim / 4), O (head_dim_v / 2) and S (keys / 2), twice with 32 rows.
constexpr std::array kShapes{
    Shape{64, 16, 4, 16, 4, "four warps with keys of their own; 64 KB on their way"},
    Shape{64, 32, 4, 16, 4, "as with 16 rows, two products a key"},
    Shape{128, 16, 4, 16, 3, "four warps with keys of their own; 96 KB on their way"},
    Shape{256, 16, 4, 16, 3, "four warps with keys of their own; 192 KB on their way"},
};

std::int64_t rows_of(const Problem& p) { return p.seqlen_q * (p.heads_q / p.heads_k); }
std::int64_t widest(const Problem& p) { return std::max(p.head_dim, p.head_dim_v); }

const Shape* find_shape(const Problem& p) {
  const auto* const row = std::ranges::find_if(
      kShapes, [&](const Shape& s) { return widest(p) <= s.head_dim && rows_of(p) <= s.rows; });
  return row == kShapes.end() ? nullptr : row;
}

// A warp's stage as device/kernels/forward_sm80_few_rows/cached_keys.cuh lays it out. There may be
// scales: tensors are not known yet.
std::int64_t cached_stage_bytes(const Problem& p, const Shape& s) {
  const auto keys = [&](CacheType type, std::int64_t dim) {
    const std::int64_t row = core::row_bytes(type, dim);
    return core::ceil_div(s.keys * (row % 16 == 0 ? row + 16 : row), 16) * 16;
  };
  const CacheType k = core::type_of_k(p), v = core::type_of_v(p);
  const bool scaled = core::is_scaled(k) || core::is_scaled(v);
  return keys(k, p.head_dim) + keys(v, p.head_dim_v) + (scaled ? 8 * s.keys : 0);
}

// Why K and V of types of their own are not taken, beside other reasons.
std::string cache_obstacle(const Problem& p, bool aligned) {
  for (const auto& [name_of, type, dim, whole] :
       {std::tuple{"type_k", core::type_of_k(p), p.head_dim, 16},
        std::tuple{"type_v", core::type_of_v(p), p.head_dim_v, 32}}) {
    constexpr int kLeast = 4;  // bytes of a copy
    if (dim % whole == 0 && cache_alignment(type, dim) >= kLeast) continue;
    return fmt::format(
        "{} is {} and its head size {}; accepted are multiples of {} whose rows have a multiple of "
        "{} bytes",
        name_of, name(type), dim, whole, kLeast);
  }
  if (!aligned) return "an address or stride of k or v is less aligned than its rows are long";
  return {};
}

// The stages of each warp; at the end, in their place, O of each warp in rows of float32 and the
// sums of each.
std::int64_t shared_bytes(const Problem& p, const Shape& s) {
  const std::int64_t row_k = (p.head_dim + 15) / 16 * 32, row_v = (p.head_dim_v + 15) / 16 * 32;
  const std::int64_t stage =
      core::has_own_types(p) ? cached_stage_bytes(p, s) : s.keys * (row_k + row_v);
  const std::int64_t stages = std::int64_t{s.stages} * s.warps * stage;
  const std::int64_t merged = std::int64_t{s.warps} * s.rows * (4 * (p.head_dim_v + 8) + 16);
  return std::max(stages, merged);
}

class ForwardFewRows final : public ForwardShape {
 public:
  explicit ForwardFewRows(const Shape& shape) : shape_(shape) {}
  void print(const ForwardConfig& config, ConfigText& to) const override {
    to.number("kBlocksAtOnce", config.tiling.blocks_at_once);
    to.number("kWarps", shape_.warps);
    to.number("kStages", shape_.stages);
  }

 private:
  const Shape& shape_;
};

int blocks_per_multiprocessor(std::int64_t shared_bytes, bool cached) {
  constexpr std::int64_t kSharedBytes = 227 << 10, kReserved = 1 << 10;  // on 9.0; of a block
  // By registers: 128 threads of at most 128 to 255; with conversions of K and V, of 168.
  const int most = cached ? 3 : 4;
  return static_cast<int>(
      std::clamp<std::int64_t>(kSharedBytes / (shared_bytes + kReserved), 1, most));
}

}  // namespace

ForwardChoice choose_forward_sm80_few_rows(const ForwardRequest& request) {
  const Problem p = one_query_each(request.problem);
  if (std::string why = tensor_core_obstacle(p, request.tensors.aligned); !why.empty()) {
    return ForwardChoice::refused(std::move(why));
  }
  if (core::has_own_types(p)) {
    if (std::string why = cache_obstacle(p, request.tensors.cache_aligned); !why.empty()) {
      return ForwardChoice::refused(std::move(why));
    }
  }
  if (p.dropout.probability > 0) {
    return ForwardChoice::refused("there is dropout; accepted is none");
  }
  const Shape* const shape = find_shape(p);
  if (shape == nullptr) {
    return ForwardChoice::refused(
        fmt::format("a K, V head of size {} has {} rows of Q that share keys; accepted are up "
                    "to 32 at head sizes up to 64, up to 16 at larger ones",
                    widest(p), rows_of(p)));
  }
  Tiling tiling;
  tiling.rows = shape->rows;
  tiling.keys = shape->warps * shape->keys;
  tiling.threads = 32 * shape->warps;
  tiling.group = static_cast<int>(p.heads_q / p.heads_k);
  tiling.stages = shape->stages;
  tiling.shared_bytes = shared_bytes(p, *shape);
  tiling.blocks_at_once = blocks_per_multiprocessor(tiling.shared_bytes, core::has_own_types(p));
  tiling.reason = shape->reason;
  // Blocks of a paged cache take 46 bytes where three blocks of threads share registers.
  if (core::has_own_types(p)) tiling.spill_bytes = 48;
  const std::int64_t most = most_shared_bytes(request.arch);
  if (tiling.shared_bytes > most) {
    return ForwardChoice::refused(
        fmt::format("its stages take {} bytes of shared memory; accepted by {} are at most {}",
                    tiling.shared_bytes, to_string(request.arch), most));
  }
  return {.tiling = tiling, .shape = std::make_shared<ForwardFewRows>(*shape)};
}

// Splits of forward_sm80_few_rows: the fewest nanoseconds of a model of the call. Blocks of threads
// share the memory's bandwidth, and none reads faster than the copies that it has on their way
// return. Each round of them has a start and an end; merging is another launch, and partial results
// are written and read. Measured on an H100, with 8 to 32 rows and 1024 to 131072 keys.
//
// Where sequences have lengths of their own, which are not known here, the longest would end alone:
// from 4096 keys on they are cut into pieces of 2048, as far as blocks of threads that find nothing
// to do stay few. Up to 16384 keys in pages, 32 sequences: 403 us in 8 pieces, 415 in one.
std::int32_t split_forward_sm80_few_rows(const Problem& p, const ForwardConfig& config,
                                         const Multiprocessors& device) {
  constexpr double kStartAndEnd = 700, kMerge = 1200;       // nanoseconds
  constexpr double kLatency = 1000, kLatencyOfByte = 0.05;  // of a warp's copies, nanoseconds
  constexpr std::int64_t kLong = 4096, kPiece = 2048, kMostRounds = 8;
  constexpr double kPartialBandwidth = 260;  // bytes a nanosecond
  const auto tiles = static_cast<double>(num_tiles(p, config, 1).value());
  const std::int64_t blocks = ceil_div(p.seqlen_k, config.tiling.keys);
  if (tiles == 0) return 1;
  const int warps = config.tiling.threads / 32;
  const auto slots = static_cast<double>(device.count) * config.tiling.blocks_at_once;
  const auto block_bytes =
      static_cast<double>(config.tiling.keys * (core::row_bytes(core::type_of_k(p), p.head_dim) +
                                                core::row_bytes(core::type_of_v(p), p.head_dim_v)));
  const double of_one =
      (config.tiling.stages - 1) * block_bytes / (kLatency + kLatencyOfByte * block_bytes / warps);
  const double partial_bytes =
      static_cast<double>(p.batch * p.heads_q * p.seqlen_q * p.head_dim_v) * sizeof(float);
  std::int64_t best = 1;
  double least = 0;
  for (std::int64_t splits = 1; splits <= std::min<std::int64_t>(kMostSplits, blocks); ++splits) {
    const std::int64_t of_split = ceil_div(blocks, splits);
    if (splits > 1 && ceil_div(blocks, of_split) < splits) continue;  // the last would be empty
    const double grid = tiles * static_cast<double>(splits);
    const double rounds = std::ceil(grid / slots);
    const double rate =
        std::min(of_one, device.bytes_per_ns * device.count / std::min(grid, slots));
    double time = rounds * (kStartAndEnd + static_cast<double>(of_split) * block_bytes / rate);
    if (splits > 1)
      time += kMerge + static_cast<double>(splits) * partial_bytes / kPartialBandwidth;
    if (splits == 1 || time < least) {
      best = splits;
      least = time;
    }
  }
  if (has_own_lengths(config.features) && p.seqlen_k > kLong) {
    const auto most = static_cast<std::int64_t>(kMostRounds * slots / tiles);
    best =
        std::max(best, std::min({ceil_div(p.seqlen_k, kPiece), most, std::int64_t{kMostSplits}}));
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace attn::cuda
