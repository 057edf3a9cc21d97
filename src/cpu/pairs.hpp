// The (sequence, K, V head) pairs of a problem, in waves small enough for what is packed once a
// pair to fit a budget.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/attention.hpp"

namespace attn::cpu {

// Pair `index` of batch * heads_k.
struct Pair {
  const core::Sequence& sequence;
  int head_k;
};
inline std::int64_t pair_count(const Attention& a) { return a.problem.batch * a.problem.heads_k; }
inline Pair pair_at(const Attention& a, std::int64_t index) {
  return {a.sequences[static_cast<std::size_t>(index / a.problem.heads_k)],
          static_cast<int>(index % a.problem.heads_k)};
}

inline constexpr std::size_t kNotPacked = SIZE_MAX;

// Pairs [first, last), which run together. offset[i]: where the packed data of pair first + i
// starts, in bytes, or kNotPacked.
struct Wave {
  std::int64_t first = 0, last = 0;
  std::vector<std::size_t> offset;
  std::size_t bytes = 0;
};

// bytes_of(pair): size of the pair's packed data, a multiple of the alignment, or kNotPacked. A
// pair over the budget is not packed. A wave of several pairs has at most wave_bytes.
template <class BytesOf>
std::vector<Wave> waves(const Attention& a, std::size_t budget, std::size_t wave_bytes,
                        const BytesOf& bytes_of) {
  std::vector<Wave> list;
  for (std::int64_t i = 0; i < pair_count(a); ++i) {
    const std::size_t wanted = bytes_of(pair_at(a, i));
    const bool packed = wanted <= budget;
    const std::size_t bytes = packed ? wanted : 0;
    if (list.empty() || list.back().bytes + bytes > wave_bytes) list.push_back({i, i, {}, 0});
    Wave& wave = list.back();
    wave.offset.push_back(packed ? wave.bytes : kNotPacked);
    wave.bytes += bytes;
    wave.last = i + 1;
  }
  return list;
}

inline std::size_t largest_wave(const std::vector<Wave>& list) {
  std::size_t bytes = 0;
  for (const Wave& wave : list) bytes = bytes < wave.bytes ? wave.bytes : bytes;
  return bytes;
}

}  // namespace attn::cpu
