#include <algorithm>
#include <array>
#include <cstddef>

#include "core/expr/bindings.hpp"
#include "core/expr/bounds.hpp"

namespace attn::expr {
namespace {

constexpr std::int64_t kMaxElements = 4096;  // that one load may look at

// Calls visit(offset) for each element of the box given by first[d], count[d].
template <class Visit>
void for_each_element(const Tensor& tensor, const std::array<std::int64_t, kMaxRank>& first,
                      const std::array<std::int64_t, kMaxRank>& count, Visit visit) noexcept {
  const auto [n0, n1, n2, n3] = count;
  const auto& s = tensor.strides;
  std::int64_t base = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(tensor.rank); ++d) base += first[d] * s[d];
  for (std::int64_t i = 0; i < n0; ++i) {
    for (std::int64_t j = 0; j < n1; ++j) {
      for (std::int64_t k = 0; k < n2; ++k) {
        for (std::int64_t l = 0; l < n3; ++l) {
          visit(base + i * s[0] + j * s[1] + k * s[2] + l * s[3]);
        }
      }
    }
  }
}

void include(Bounds& bounds, float value) noexcept {
  if (value != value) {
    bounds.nan = true;
    return;
  }
  bounds.flo = std::min(bounds.flo, value);
  bounds.fhi = std::max(bounds.fhi, value);
}
void include(Bounds& bounds, std::int32_t value) noexcept {
  bounds.lo = std::min<std::int64_t>(bounds.lo, value);
  bounds.hi = std::max<std::int64_t>(bounds.hi, value);
}

}  // namespace

Bounds load_bounds(const Tensor& tensor, Type type, const Bounds* index) noexcept {
  std::array<std::int64_t, kMaxRank> first{};
  std::array<std::int64_t, kMaxRank> count{1, 1, 1, 1};
  bool leaves = false;  // some index lies outside and reads zero
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < static_cast<std::size_t>(tensor.rank); ++d) {
    if (tensor.shape[d] == 1) continue;
    first[d] = std::max<std::int64_t>(index[d].lo, 0);
    const std::int64_t last = std::min(index[d].hi, tensor.shape[d] - 1);
    leaves = leaves || index[d].lo < 0 || index[d].hi >= tensor.shape[d];
    count[d] = std::max<std::int64_t>(last - first[d] + 1, 0);
    elements = std::min(elements * count[d], kMaxElements + 1);  // each factor is below 2^32
    if (count[d] == 0) return Bounds{};
  }
  const bool is_float = type == Type::float32;
  if (elements > kMaxElements) {
    if (is_float) return any_float();
    return tensor.dtype == DType::u8 ? int_bounds(0, 255) : any_int();
  }
  Bounds bounds{kIntMax, kIntMin, kInfinity, -kInfinity, false};
  for_each_element(tensor, first, count, [&](std::int64_t offset) {
    if (is_float) {
      include(bounds, read_float(tensor, offset));
    } else {
      include(bounds, read_int(tensor, offset));
    }
  });
  if (leaves) {
    is_float ? include(bounds, 0.0f) : include(bounds, std::int32_t{0});
  }
  // Nothing but NaN: an empty range would make comparisons of bounds meaningless.
  return bounds.nan && bounds.flo > bounds.fhi ? any_float() : bounds;
}

}  // namespace attn::expr
