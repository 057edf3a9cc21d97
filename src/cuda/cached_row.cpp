#include "cuda/cached_row.hpp"

#include <cstddef>

#include "core/cache_type.hpp"
#include "cuda/driver/pointer.hpp"

namespace attn::cuda {

int wide_columns(const Tensor& from, CacheType type, const Tensor& to) {
  const std::int64_t columns = from.shape[static_cast<std::size_t>(from.rank) - 1];
  for (const int wide : {8, 4}) {
    const auto fits = [&](const Tensor& t) {
      return alignment_of(t) % (wide * static_cast<std::int64_t>(size_of(t.dtype))) == 0;
    };
    if (wide * static_cast<std::int64_t>(size_of(from.dtype)) <= 16 && columns % wide == 0 &&
        fits(from) && (core::is_blocked(type) || fits(to))) {
      return wide;
    }
  }
  return 1;
}

int lanes_of_row(std::int64_t columns, int wide) {
  int lanes = 1;
  while (lanes * wide < columns && lanes < 32) lanes *= 2;
  return lanes;
}

}  // namespace attn::cuda
