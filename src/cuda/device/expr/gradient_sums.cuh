// Where the gradient of a buffer is summed. Plain data: host and device both include this file.
#pragma once

namespace attn::device {

// An exact sum of float32 (expr/superaccumulator.cuh). All bytes 0 is the sum 0.
struct Superaccumulator {
  unsigned long long words[6];  // two's complement, the lowest first
  unsigned infinities, unused;  // what was added of them: 1 for +inf, 2 for -inf, 3 for NaN
};

// A gradient that is summed in memory: any thread adds to any element. Sum: double, or
// Superaccumulator where the order of additions must not matter; void: one of them.
template <class Sum>
struct GradientSums {
  Sum* sums;           // row-major
  long long sizes[4];  // of the dimensions; 1: any index is good
};

// A gradient that is summed in registers: a thread has the element of one query and key, and stores
// it.
struct ElementGradient {
  float* to;  // of split 0
  long long sizes[4], strides[4];
  long long split_stride;  // elements between two splits
};

}  // namespace attn::device
