// The (sequence, K, V head) pairs of a problem, in waves small enough for what is packed once a
// pair to fit a budget.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

#include "cpu/attention.hpp"

namespace attn::cpu {

// Pair `index` of sequences * heads_k.
struct Pair {
  const core::Sequence& sequence;
  int head_k;
};
inline std::int64_t pair_count(const Attention& a) {
  return static_cast<std::int64_t>(a.sequences.size()) * a.problem.heads_k;
}
inline Pair pair_at(const Attention& a, std::int64_t index) {
  return {a.sequences[static_cast<std::size_t>(index / a.problem.heads_k)],
          static_cast<int>(index % a.problem.heads_k)};
}

inline constexpr std::size_t kNotPacked = SIZE_MAX;

// Pairs [first, last), which run together.
struct Wave {
  std::int64_t first = 0, last = 0;
  std::size_t bytes = 0;  // of their packed data
};

struct Waves {
  std::pmr::vector<Wave> list;
  // The offset, in bytes, of the packed data of each pair in that of its wave, or kNotPacked.
  std::pmr::vector<std::size_t> offset;

  std::size_t offset_of(std::int64_t pair) const { return offset[static_cast<std::size_t>(pair)]; }
};

// Waves of the pairs from `first` on. bytes_of(pair): size of the pair's packed data, a multiple of
// the alignment, or kNotPacked. A pair over the budget is not packed. A wave of several pairs has
// at most wave_bytes.
template <class BytesOf>
Waves waves(const Attention& a, std::size_t budget, std::size_t wave_bytes, const BytesOf& bytes_of,
            Workspace& workspace, std::int64_t first = 0) {
  const auto pairs = static_cast<std::size_t>(pair_count(a));
  std::pmr::vector<Wave> list(&workspace);
  std::pmr::vector<std::size_t> offset(&workspace);
  list.reserve(pairs);
  offset.reserve(pairs);
  offset.assign(static_cast<std::size_t>(first), kNotPacked);
  for (std::int64_t i = first; i < pair_count(a); ++i) {
    const std::size_t wanted = bytes_of(pair_at(a, i));
    const bool packed = wanted <= budget;
    const std::size_t bytes = packed ? wanted : 0;
    if (list.empty() || list.back().bytes + bytes > wave_bytes) list.push_back({i, i, 0});
    Wave& wave = list.back();
    offset.push_back(packed ? wave.bytes : kNotPacked);
    wave.bytes += bytes;
    wave.last = i + 1;
  }
  return {std::move(list), std::move(offset)};
}

inline std::size_t largest_wave(const Waves& waves) {
  std::size_t bytes = 0;
  for (const Wave& wave : waves.list) bytes = bytes < wave.bytes ? wave.bytes : bytes;
  return bytes;
}

}  // namespace attn::cpu
