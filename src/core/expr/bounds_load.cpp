// The range of what a load reads, whose indices lie in given ranges (bounds.hpp): it looks at the
// elements, if they are few. src/cuda/device/expr/range_load.cuh has the same rules.
#include <algorithm>
#include <array>
#include <cstddef>

#include "core/expr/bindings.hpp"
#include "core/expr/bounds.hpp"

namespace attn::expr {
namespace {

constexpr std::int64_t kMaxElements = 4096;  // that one load may look at

using Sizes = std::array<std::int64_t, kMaxRank>;

// The elements of a box: from `offset` on, count[d] steps of strides[d].
struct Box {
  std::int64_t offset = 0;
  Sizes count{1, 1, 1, 1};
  Sizes strides{};
};

// Calls visit(offset) for the first element of each run along the last dimension.
template <class Visit>
void for_each_run(const Box& box, const Visit& visit) noexcept {
  const auto& s = box.strides;
  for (std::int64_t i = 0; i < box.count[0]; ++i) {
    for (std::int64_t j = 0; j < box.count[1]; ++j) {
      for (std::int64_t k = 0; k < box.count[2]; ++k) {
        visit(box.offset + i * s[0] + j * s[1] + k * s[2]);
      }
    }
  }
}

template <class T>
Bounds int_elements(const Tensor& tensor, const Box& box) noexcept {
  const T* data = static_cast<const T*>(tensor.data);
  T lo = std::numeric_limits<T>::max();
  T hi = std::numeric_limits<T>::min();
  const std::int64_t count = box.count[3];
  const std::int64_t step = box.strides[3];
  for_each_run(box, [&](std::int64_t offset) {
    const T* run = data + offset;
    if (step == 1) {  // apart, so that it is vectorised
      for (std::int64_t l = 0; l < count; ++l) {
        lo = std::min(lo, run[l]);
        hi = std::max(hi, run[l]);
      }
    } else {
      for (std::int64_t l = 0; l < count; ++l) {
        lo = std::min(lo, run[l * step]);
        hi = std::max(hi, run[l * step]);
      }
    }
  });
  return int_bounds(lo, hi);
}

Bounds float_elements(const Tensor& tensor, const Box& box) noexcept {
  Bounds bounds = float_bounds(kInfinity, -kInfinity, false);
  for_each_run(box, [&](std::int64_t offset) {
    for (std::int64_t l = 0; l < box.count[3]; ++l) {
      const float value = read_float(tensor, offset + l * box.strides[3]);
      bounds.nan = bounds.nan || value != value;
      bounds.flo = std::min(bounds.flo, value);  // a NaN value changes neither
      bounds.fhi = std::max(bounds.fhi, value);
    }
  });
  // Where all elements are NaN no range was found, and an empty one would make comparisons of
  // bounds meaningless. Others with a NaN have as wide a range, so that a part of a box is never
  // wider than the box: who reads more at once must not know more of a mask.
  return bounds.nan ? any_float() : bounds;
}

}  // namespace

Bounds load_bounds(const Tensor& tensor, Type type, const IndexRange* index) noexcept {
  if (tensor.rank == 0) {  // a scalar, of which small tiles are many
    return type == Type::float32 ? float_elements(tensor, Box{})
                                 : int_bounds(read_int(tensor, 0), read_int(tensor, 0));
  }
  Box box;
  bool leaves = false;  // some index lies outside and reads zero
  std::int64_t elements = 1;
  const auto rank = static_cast<std::size_t>(tensor.rank);
  for (std::size_t d = 0; d < rank; ++d) {
    if (tensor.shape[d] == 1) continue;
    const std::size_t at = kMaxRank - rank + d;  // aligned with the last dimension
    const std::int64_t first = std::max<std::int64_t>(index[d].lo, 0);
    const std::int64_t last = std::min(index[d].hi, tensor.shape[d] - 1);
    if (last < first) return Bounds{};
    leaves = leaves || index[d].lo < 0 || index[d].hi >= tensor.shape[d];
    box.offset += first * tensor.strides[d];
    box.count[at] = last - first + 1;
    box.strides[at] = tensor.strides[d];
    elements = std::min(elements * box.count[at], kMaxElements + 1);  // each factor is below 2^32
  }
  const bool is_float = type == Type::float32;
  const bool is_byte = tensor.dtype == DType::u8;
  if (elements > kMaxElements) {
    if (is_float) return any_float();
    return is_byte ? int_bounds(0, 255) : any_int();
  }
  const Bounds bounds = is_float  ? float_elements(tensor, box)
                        : is_byte ? int_elements<std::uint8_t>(tensor, box)
                                  : int_elements<std::int32_t>(tensor, box);
  return leaves ? hull(bounds, Bounds{}) : bounds;
}

}  // namespace attn::expr
