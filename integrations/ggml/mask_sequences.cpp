#include "mask_sequences.hpp"

#include <algorithm>
#include <cstring>

#include "mask_rows.hpp"

namespace attn_ggml {
namespace {

// Whether a row that sees keys up to `end` sees what the one before does, and one key behind it.
bool continues(const std::uint16_t* row, std::int32_t end, const std::uint16_t* before,
               std::int32_t end_before) {
  if (end <= end_before) return false;
  if (std::memcmp(row, before, static_cast<std::size_t>(end_before) * sizeof *row) != 0) {
    return false;
  }
  return std::all_of(row + end_before, row + end - 1, [](auto bits) { return bits == kHidden; });
}

}  // namespace

std::optional<MaskSequences> read_sequences(const attn::Tensor& mask) {
  const std::int64_t rows = mask.shape[2], keys = mask.shape[3];
  const MaskRows bounds = read_mask(mask);
  const auto row_at = [&](std::int64_t i) {
    return static_cast<const std::uint16_t*>(mask.data) + mask.offset({0, 0, i, 0});
  };
  const auto end_of = [&](std::int64_t i) { return bounds.end[static_cast<std::size_t>(i)]; };
  MaskSequences result;
  std::vector<std::vector<std::int32_t>> seen;
  std::int64_t cost = 0, longest = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    if (i + 1 < rows && continues(row_at(i + 1), end_of(i + 1), row_at(i), end_of(i))) continue;
    std::vector<std::int32_t>& of = seen.emplace_back();
    for (std::int32_t j = 0; j < end_of(i); ++j) {
      const std::uint16_t bits = row_at(i)[j];
      if (bits == kHidden) continue;
      if ((bits & 0x7fff) != 0) return std::nullopt;
      of.push_back(j);
    }
    const auto length = static_cast<std::int64_t>(of.size());
    const std::int64_t rows_of = i + 1 - result.starts.back();
    // Keys that few rows see take about as long as for eight.
    cost += std::max<std::int64_t>(rows_of, 8) * length;
    if (cost > std::max<std::int64_t>(rows, 8) * keys) return std::nullopt;
    longest = std::max(longest, length);
    result.starts.push_back(static_cast<std::int32_t>(i + 1));
    result.lengths.push_back(static_cast<std::int32_t>(length));
  }
  result.width = std::max<std::int64_t>(1, (longest + 255) / 256) * 256;
  result.keys.assign(seen.size() * static_cast<std::size_t>(result.width), -1);
  for (std::size_t s = 0; s < seen.size(); ++s) {
    std::copy(seen[s].begin(), seen[s].end(),
              result.keys.begin() + static_cast<std::ptrdiff_t>(s) * result.width);
  }
  return result;
}

}  // namespace attn_ggml
