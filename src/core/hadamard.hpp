// The Walsh-Hadamard transform of a row (attn/append_kv.hpp), in the arithmetic of the caller.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace attn::core {

// The size of the blocks that the transform of a row of `dim` elements has.
constexpr std::int64_t hadamard_size(std::int64_t dim) { return dim & -dim; }

// x <- H x of each block of `size` elements, a power of two: 1 leaves x as it is.
template <class Real>
void hadamard(std::span<Real> x, std::int64_t size) {
  const auto block = static_cast<std::size_t>(size);
  for (std::size_t step = 1; step < block; step *= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & step) != 0) continue;
      const Real a = x[i], b = x[i + step];
      x[i] = a + b;
      x[i + step] = a - b;
    }
  }
  const Real norm = 1 / std::sqrt(static_cast<Real>(size));
  for (Real& value : x) value *= norm;
}

// Whether the random diagonal matrix of incoherent processing negates column `column`: by the top
// bit of number `column` of the generator SplitMix64 (Steele et al. 2014) that starts at `seed`.
constexpr bool negates_column(std::uint64_t seed, std::int64_t column) {
  std::uint64_t z = seed + (static_cast<std::uint64_t>(column) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return ((z ^ (z >> 31)) >> 63) != 0;
}

}  // namespace attn::core
