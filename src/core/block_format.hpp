// Weights in blocks (attn::BlockFormat).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/matmul.hpp"

namespace attn::core {

inline constexpr std::int64_t kBlockElements = 32;

// Bytes of a block; 0 of none.
constexpr std::int64_t block_bytes(BlockFormat format) {
  switch (format) {
    case BlockFormat::none:
      break;
    case BlockFormat::q8_0:
      return 34;
    case BlockFormat::q4_0:
      return 18;
    case BlockFormat::q4_1:
      return 20;
  }
  return 0;
}

// Element i of a row of blocks, exactly: the definition. The format is one of blocks.
double block_element(const std::byte* row, std::int64_t i, BlockFormat format);

}  // namespace attn::core
