// Where the gradient of a buffer is summed. Plain data: host and device both include this file.
#pragma once

namespace attn::device {

// A gradient that is summed in memory: any thread adds to any element.
struct GradientSums {
  double* sums;        // row-major
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
