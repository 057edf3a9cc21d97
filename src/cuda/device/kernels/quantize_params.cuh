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
  // Axes of rows, the sequence's first, then heads; strides count elements.
  long long sizes[kQuantizeAxes], x_strides[kQuantizeAxes], to_strides[kQuantizeAxes];
  long long scale_strides[kQuantizeAxes];
  long long block;                          // rows of a sequence that share a scale
  long long rows_together;                  // that a warp has, one after the other
  unsigned negated[kQuantizeColumns / 32];  // bits: columns that a rotation negates
};
inline constexpr int kQuantizeThreads = 256;

}  // namespace attn::device
