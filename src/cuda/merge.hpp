// Merging partial results over disjoint sets of keys.
#pragma once

#include <cstddef>
#include <vector>

#include "attn/context.hpp"
#include "attn/run.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

inline constexpr std::size_t kMostMergedParts = 32;

// attn::merge on a GPU, of arguments that were checked, up to kMostMergedParts parts of f32, bf16
// and f16: puts it into context.stream. Throws Error(unavailable | unsupported | device).
void merge(const std::vector<Outputs>& parts, const Outputs& result, const Context& context);

// Its kernel. wide: columns that are loaded at once, 4 or 1.
Source merge_source(int wide);

}  // namespace attn::cuda
