// Copies of rows of tensors on a GPU, several by one launch.
#pragma once

#include <span>

#include "attn/context.hpp"
#include "attn/tensor.hpp"

namespace attn::cuda {

struct RowCopy {
  Tensor from, to;
};

// Puts into context.stream: to <- from, bit for bit, of each of the copies, which write apart. Both
// are [batch, rows, heads, columns] or [rows, heads, columns], of one shape and one dtype of 16 or
// 32 bits, with contiguous columns. Each `to` is memory of one device; that device reads each
// `from`, which may be another GPU's (can_read()). Throws Error(unavailable | device).
void copy_rows(std::span<const RowCopy> copies, const Context& context);

// Whether kernels of a GPU read memory of the other, once let_devices_copy() was called.
bool can_read(int device, int other);

}  // namespace attn::cuda
