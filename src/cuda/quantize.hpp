// Rows of floating numbers in the types of caches.
#pragma once

#include <cstdint>

#include "attn/cache_type.hpp"
#include "attn/context.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

inline constexpr std::int64_t kMostQuantizedColumns = 1024;

struct QuantizeCall {
  Tensor x, to, scale;
  CacheType type;
  QuantizeOptions options;
};

// attn::quantize on a GPU, of a call that was checked, with rows of up to kMostQuantizedColumns
// elements and without f64: puts it into context.stream. Throws Error(unavailable | device).
void quantize(const QuantizeCall& call, const Context& context);

// Its kernel, of all launches the last.
Source quantize_source(const QuantizeCall& call);

}  // namespace attn::cuda
