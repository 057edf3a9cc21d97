// What the kernels of quantize are given; host and device include the same file.
#pragma once

namespace attn::device {

// Which scale rows are divided by: 1; one that a row chooses for itself; one that rows share, which
// two launches before this one have found.
enum class QuantizeScale { none, row, shared };

inline constexpr int kQuantizeAxes = 3;           // of rows
inline constexpr int kQuantizeColumns = 1 << 10;  // of a row, at most
struct QuantizeParams {
  const void* x;
  void* to;
  float* scale;
  long long rows;
  // Axes of rows, those along which rows share a scale first; strides count elements.
  long long sizes[kQuantizeAxes], x_strides[kQuantizeAxes], to_strides[kQuantizeAxes];
  long long scale_strides[kQuantizeAxes];
  // What is added besides where an axis begins anew and the one behind it goes on.
  long long x_wraps[kQuantizeAxes], to_wraps[kQuantizeAxes], scale_wraps[kQuantizeAxes];
  long long block;                          // rows along the first axis that share a scale
  long long rows_together;                  // that some lanes have, one after the other
  unsigned negated[kQuantizeColumns / 32];  // bits: columns that a rotation negates
};
inline constexpr int kQuantizeThreads = 256;

}  // namespace attn::device
