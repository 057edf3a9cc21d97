#include "mask_rows.hpp"

#include <algorithm>
#include <cstring>

namespace attn_ggml {
namespace {

constexpr std::uint64_t kFourHidden = 0xfc00fc00fc00fc00;
constexpr std::uint64_t kFourSigns = 0x8000800080008000;

std::uint64_t four_at(const std::uint16_t* at) {
  std::uint64_t four;
  std::memcpy(&four, at, sizeof four);
  return four;
}

// The first key of [begin, end) that is not hidden, or end.
std::int64_t skip_hidden(const std::uint16_t* row, std::int64_t begin, std::int64_t end) {
  while (begin + 4 <= end && four_at(row + begin) == kFourHidden) begin += 4;
  while (begin < end && row[begin] == kHidden) ++begin;
  return begin;
}

// The end of what is left of [begin, end) without the hidden keys at its end.
std::int64_t drop_hidden(const std::uint16_t* row, std::int64_t begin, std::int64_t end) {
  while (begin + 4 <= end && four_at(row + end - 4) == kFourHidden) end -= 4;
  while (begin < end && row[end - 1] == kHidden) --end;
  return end;
}

// Whether all of [begin, end) are zeros of either sign.
bool all_zero(const std::uint16_t* row, std::int64_t begin, std::int64_t end) {
  while (begin + 4 <= end && (four_at(row + begin) & ~kFourSigns) == 0) begin += 4;
  while (begin < end && (row[begin] & 0x7fff) == 0) ++begin;
  return begin == end;
}

}  // namespace

MaskRows read_mask(const attn::Tensor& mask) {
  const auto [batch, heads, rows, keys] = mask.shape;
  MaskRows result;
  result.first.reserve(static_cast<std::size_t>(batch * heads * rows));
  result.end.reserve(static_cast<std::size_t>(batch * heads * rows));
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t length = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto* row = static_cast<const std::uint16_t*>(mask.data) + mask.offset({b, h, i, 0});
        std::int64_t first = skip_hidden(row, 0, keys);
        std::int64_t end = drop_hidden(row, first, keys);
        if (first == end) first = end = 0;
        result.bounds_alone = result.bounds_alone && all_zero(row, first, end);
        result.from_first_key = result.from_first_key && first == 0;
        length = std::max(length, end);
        result.first.push_back(static_cast<std::int32_t>(first));
        result.end.push_back(static_cast<std::int32_t>(end));
      }
    }
    result.length.push_back(static_cast<std::int32_t>(length));
    for (std::int64_t i = 0; i < heads * rows; ++i) {
      const std::int64_t end = result.end[static_cast<std::size_t>(b * heads * rows + i)];
      result.to_length = result.to_length && end == length;
      result.causal = result.causal && end == length - (rows - 1 - i % rows);
    }
  }
  result.causal = result.causal && result.from_first_key;
  return result;
}

}  // namespace attn_ggml
