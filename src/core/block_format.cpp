#include "core/block_format.hpp"

#include "core/cached_rows.hpp"
#include "core/tensor/element.hpp"

namespace attn::core {

double block_element(const std::byte* row, std::int64_t i, BlockFormat format) {
  switch (format) {
    case BlockFormat::none:
      break;
    case BlockFormat::q8_0:
      return cached_element(row, i, CacheType::q8_0);
    case BlockFormat::q4_0:
      return cached_element(row, i, CacheType::q4_0);
    case BlockFormat::q4_1: {
      const std::byte* const block = row + i / kBlockElements * block_bytes(format);
      const auto pair = std::to_integer<int>(block[4 + i % 16]);
      const int q = i % kBlockElements < 16 ? pair & 15 : pair >> 4;
      return load_element(block, DType::f16) * q + load_element(block + 2, DType::f16);
    }
  }
  return 0;
}

}  // namespace attn::core
