// Where the gradient of a buffer is summed. Plain data: host and device both include this file.
#pragma once

namespace attn::device {

struct GradientSums {
  double* sums;        // row-major
  long long sizes[4];  // of the dimensions; 1: any index is good
};

}  // namespace attn::device
