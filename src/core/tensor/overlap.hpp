// Whether strided tensors share memory, exactly: ranges that interleave (Q, K and V in one tensor)
// do not.
#pragma once

#include <cstdint>

#include "attn/tensor.hpp"

namespace attn::core {

// Addresses of the first and the last byte of a tensor that passed ArgumentCheck::view; last is
// before first where it has no elements.
struct Bytes {
  std::int64_t first = 0, last = -1;
  bool apart(const Bytes& other) const { return last < other.first || other.last < first; }
};
Bytes bytes_of(const Tensor& t);

// Whether a byte belongs to both tensors, which passed ArgumentCheck::view. Exact for all layouts
// met in practice; where the search would take more than about a millisecond the answer is true.
bool overlap(const Tensor& a, const Tensor& b);

// Whether two different elements of t share memory, as with stride 0.
bool self_overlap(const Tensor& t);

}  // namespace attn::core
