#include "cuda/kernels/combine_shape.hpp"

#include <algorithm>
#include <bit>

namespace attn::cuda {

CombineShape choose_combine(std::int64_t head_dim_v, std::int32_t num_splits) {
  // 8 loads of a thread are on their way together, so that a row waits for memory once or twice.
  constexpr std::uint32_t kLoads = 8;
  constexpr int kWarp = 32, kMostAcross = 128, kMostRowThreads = 512, kFewestThreads = 128;
  const std::int64_t wide = head_dim_v % 4 == 0 ? head_dim_v / 4 : head_dim_v;
  CombineShape shape;
  shape.across =
      std::min(kMostAcross, static_cast<int>(std::bit_ceil(static_cast<std::uint32_t>(wide))));
  const auto lanes = static_cast<int>(
      std::bit_ceil((static_cast<std::uint32_t>(num_splits) + kLoads - 1) / kLoads));
  shape.split_lanes = std::clamp(lanes, std::max(1, kWarp / shape.across),
                                 std::max(1, std::min(kWarp, kMostRowThreads / shape.across)));
  shape.threads = std::max(kFewestThreads, shape.across * shape.split_lanes);
  const std::int64_t each = (wide + shape.across - 1) / shape.across * (head_dim_v / wide);
  shape.shared_bytes = static_cast<int>(each * shape.threads * std::int64_t{sizeof(float)});
  return shape;
}

}  // namespace attn::cuda
