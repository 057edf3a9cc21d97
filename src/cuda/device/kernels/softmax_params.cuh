// What the kernel of softmax is given; host and device include the same file.
#pragma once

namespace attn::device {

// Strides count elements.
struct SoftmaxParams {
  const float* x;
  float* y;       // where C::kTop is 0
  float* values;  // elsewhere, with at
  int* columns;
  float* lse;  // null when not asked for
  long long rows;
  int columns_x;
  long long x_row, y_row, lse_row;
  long long values_row, values_column, columns_row, columns_column;
};
inline constexpr int kSoftmaxThreads = 256;

}  // namespace attn::device
