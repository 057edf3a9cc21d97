#include "core/tensor/overlap.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace attn::core {
namespace {

// Two bytes coincide where a sum of stride * z over bounded integers z falls into a window.
// Depth-first search over z by decreasing stride; a branch is left as soon as the smaller strides
// cannot reach the window. Where strides nest (each at least the extent of the smaller ones) a
// level has at most three candidates.
class Search {
 public:
  void add(std::int64_t stride, std::int64_t min, std::int64_t max) {
    if (stride == 0 || (min == 0 && max == 0)) return;
    if (stride < 0) {
      stride = -stride;
      std::swap(min, max);
      min = -min;
      max = -max;
    }
    for (std::size_t k = 0; k < count_; ++k) {
      if (terms_[k].stride == stride) {
        terms_[k].min += min;
        terms_[k].max += max;
        return;
      }
    }
    terms_[count_++] = {stride, min, max};
  }

  // Whether the sum can lie in [low, high].
  bool reaches(std::int64_t low, std::int64_t high) {
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    std::int64_t least = 0, most = 0;
    for (std::size_t k = count_; k-- > 0;) {
      Term& term = terms_[k];
      term.rest_least = least;
      term.rest_most = most;
      least += term.stride * term.min;
      most += term.stride * term.max;
    }
    return reaches(0, low, high);
  }

 private:
  struct Term {
    std::int64_t stride = 0, min = 0, max = 0;   // stride * z, min <= z <= max
    std::int64_t rest_least = 0, rest_most = 0;  // sum of all later terms
  };

  static std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
  }

  bool reaches(std::size_t k, std::int64_t low, std::int64_t high) {
    if (k == count_) return low <= 0 && 0 <= high;
    const Term& term = terms_[k];
    const std::int64_t first = std::max(term.min, -floor_div(term.rest_most - low, term.stride));
    const std::int64_t last = std::min(term.max, floor_div(high - term.rest_least, term.stride));
    if (k + 1 == count_) return first <= last;
    for (std::int64_t z = first; z <= last; ++z) {
      if (++steps_ > kMaxSteps) return true;
      if (reaches(k + 1, low - term.stride * z, high - term.stride * z)) return true;
    }
    return false;
  }

  static constexpr int kMaxSteps = 100'000;  // about a millisecond
  std::array<Term, 2 * kMaxRank> terms_{};
  std::size_t count_ = 0;
  int steps_ = 0;
};

std::int64_t address(const Tensor& t) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data));
}

}  // namespace

Bytes bytes_of(const Tensor& t) {
  if (!t.given()) return {};
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  Bytes bytes{address(t), address(t) + size - 1};
  for (std::int32_t k = 0; k < t.rank; ++k) {
    if (t.shape[k] == 0) return {};
    const std::int64_t extent = (t.shape[k] - 1) * t.strides[k] * size;
    (extent < 0 ? bytes.first : bytes.last) += extent;
  }
  return bytes;
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (bytes_of(a).apart(bytes_of(b))) return false;
  // Byte x of element i of a is byte y of element j of b:  sum a.stride i - sum b.stride j = base_b
  // - base_a + y - x.
  const auto size_a = static_cast<std::int64_t>(size_of(a.dtype));
  const auto size_b = static_cast<std::int64_t>(size_of(b.dtype));
  Search search;
  for (std::int32_t k = 0; k < a.rank; ++k) search.add(a.strides[k] * size_a, 0, a.shape[k] - 1);
  for (std::int32_t k = 0; k < b.rank; ++k) search.add(b.strides[k] * size_b, 1 - b.shape[k], 0);
  const std::int64_t distance = address(b) - address(a);
  return search.reaches(distance - (size_a - 1), distance + (size_b - 1));
}

bool self_overlap(const Tensor& t) {
  if (!t.given() || t.contiguous()) return false;
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  // Two elements whose indices first differ in dimension k, there by z > 0.
  for (std::int32_t k = 0; k < t.rank; ++k) {
    if (t.shape[k] == 1) continue;
    Search search;
    search.add(t.strides[k] * size, 1, t.shape[k] - 1);
    for (std::int32_t m = k + 1; m < t.rank; ++m) {
      search.add(t.strides[m] * size, 1 - t.shape[m], t.shape[m] - 1);
    }
    if (search.reaches(1 - size, size - 1)) return true;
  }
  return false;
}

}  // namespace attn::core
