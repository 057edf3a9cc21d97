// What the mask of a FLASH_ATTN_EXT says, read off its numbers. ggml has masks as tensors alone: a
// causal bound, a window, a length and padding are rows of zeros between rows of -inf.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/tensor.hpp"

namespace attn_ggml {

inline constexpr std::uint16_t kHidden = 0xfc00;  // -inf of f16, of keys that a mask hides

struct MaskRows {
  // i32 [batch, heads, rows] of the mask: a row sees no key before `first` and none from `end` on;
  // both 0 where it sees none.
  std::vector<std::int32_t> first, end;
  // i32 [batch] of the mask: the largest `end`.
  std::vector<std::int32_t> length;
  // True: the bounds are the whole mask, as every number between them is zero. False: the numbers
  // must be added to the scores too, or keys between the bounds are hidden.
  bool bounds_alone = true;
  // True: row i of n sees the keys from 0 to the length less n - 1 - i, in each batch entry and
  // head, which is attn::causal().
  bool causal = true;
  // False: some `first` is above 0. False: some `end` is below the length.
  bool from_first_key = true, to_length = true;
};

// mask: f16 [batch, heads, rows, keys] in memory of the CPU, keys with stride 1, other strides
// free. Reads each number once. Thread-safe.
MaskRows read_mask(const attn::Tensor& mask);

}  // namespace attn_ggml
