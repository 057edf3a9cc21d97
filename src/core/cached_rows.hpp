// Elements of Q, K and V in the types of caches (attn/cache_type.hpp), one by one and by rows. For
// code where clarity matters more than speed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attn/run.hpp"
#include "core/cache_type.hpp"
#include "core/problem/rows.hpp"

namespace attn::core {

// Element i of a row, without a scale of Inputs.
double cached_element(const std::byte* row, std::int64_t i, CacheType type);
// row <- values[0, dim), rounded to nearest, ties to even, and to the largest number where they are
// larger. Blocks choose their scale as attn::quantize says; others divide by `scale` first. Values
// are finite.
void store_cached_row(std::byte* row, const double* values, std::int64_t dim, CacheType type,
                      double scale = 1);

// The scales of K or of V of one sequence: Inputs::scale_k or scale_v, 1 where it is not given. And
// those of Q.
class Scales {
 public:
  Scales(const Problem& problem, const Inputs& inputs, const Tensor& scale, std::int64_t batch);
  static Scales of_q(const Problem& problem, const Inputs& inputs, std::int64_t batch);
  bool given() const { return given_; }
  // NaN where the scale is not finite, so that every element of the row is. row: a key or query.
  float at(std::int64_t row, std::int64_t head) const {
    if (!given_) return 1;
    const float scale = *reinterpret_cast<const float*>(rows_.row(row, head));
    return std::isfinite(scale) ? scale : std::numeric_limits<float>::quiet_NaN();
  }

 private:
  Scales(bool given, const Rows& rows) : given_(given), rows_(rows) {}

  bool given_;
  Rows rows_;
};

}  // namespace attn::core
