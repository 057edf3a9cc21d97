// Merging partial results over disjoint sets of keys.
#pragma once

#include <cstddef>
#include <vector>

#include "attn/context.hpp"
#include "attn/run.hpp"
#include "cuda/codegen/source.hpp"
#include "cuda/device/kernels/merge_params.cuh"

namespace attn::cuda {

inline constexpr std::size_t kMostMergedParts = 32;

// attn::merge on a GPU, of arguments that were checked, up to kMostMergedParts parts of f32, bf16
// and f16: puts it into context.stream. Throws Error(unavailable | unsupported | device).
void merge(const std::vector<Outputs>& parts, const Outputs& result, const Context& context);

// All that the source of its kernel depends on.
struct MergeConfig {
  MergeConfig() = default;
  MergeConfig(const std::vector<Outputs>& parts, const Outputs& result);
  bool operator==(const MergeConfig&) const = default;

  int wide = 1;        // columns that are loaded at once: 8, 4 or 1
  int part_lanes = 2;  // the least power of two from 2 on that is not less than the parts
  device::MergeType type = device::MergeType::mixed;  // of the parts
};
Source merge_source(const MergeConfig& config);

}  // namespace attn::cuda
