// How rows lie in registers on their way to a cache (device/tile/cached_row.cuh).
#pragma once

#include <cstdint>

#include "attn/cache_type.hpp"
#include "attn/tensor.hpp"

namespace attn::cuda {

// Columns of rows of `from` that are loaded and, but for blocks, stored at once: 8 or 4, up to 16
// bytes, where addresses and strides of both tensors allow it; else 1.
int wide_columns(const Tensor& from, CacheType type, const Tensor& to);

// The least power of two that is not less than the packets of `wide` columns in a row, 32 at most.
int lanes_of_row(std::int64_t columns, int wide);

}  // namespace attn::cuda
