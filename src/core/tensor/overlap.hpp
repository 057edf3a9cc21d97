// Whether strided tensors share memory, exactly: ranges that interleave (Q, K and V in one tensor)
// do not.
#pragma once

#include "attn/tensor.hpp"

namespace attn::core {

// Both tensors passed ArgumentCheck::view. Exact for all layouts met in practice; where the search
// would take more than about a millisecond the answer is true.
bool overlap(const Tensor& a, const Tensor& b);

// Whether two different elements of t share memory, as with stride 0.
bool self_overlap(const Tensor& t);

}  // namespace attn::core
