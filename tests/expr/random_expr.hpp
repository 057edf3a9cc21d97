// Random expressions over all operations and a set of random buffers.
#pragma once

#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "attn/expr.hpp"
#include "attn/tensor.hpp"

namespace attn::test {

class RandomExpr {
 public:
  // smooth: float expressions are differentiable and stay of moderate size, for finite differences.
  explicit RandomExpr(std::uint32_t seed, bool smooth = false);
  RandomExpr(const RandomExpr&) = delete;
  RandomExpr& operator=(const RandomExpr&) = delete;

  expr::Expr boolean(int depth, bool with_score);
  expr::Expr int32(int depth);
  expr::Expr float32(int depth, bool with_score);

  int uniform(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random_); }
  double real(double lo, double hi) {
    return std::uniform_real_distribution<double>(lo, hi)(random_);
  }
  // A value that breaks interval arithmetic.
  float special_float() {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    constexpr float kMost = std::numeric_limits<float>::max();
    constexpr float kValues[] = {0.0F,
                                 -0.0F,
                                 1.0F,
                                 -2.0F,
                                 3.5F,
                                 kInf,
                                 -kInf,
                                 kMost,
                                 -kMost,
                                 0x1p-149F,
                                 0x1p-126F,
                                 -2.5F,
                                 0x1p+31F,
                                 -0x1p+31F,
                                 0x1.fffffep+30F,
                                 std::numeric_limits<float>::quiet_NaN()};
    return kValues[uniform(0, static_cast<int>(std::size(kValues)) - 1)];
  }
  // Small, or anywhere in int32 so that arithmetic wraps.
  std::int32_t any_int();

  const std::vector<expr::Buffer>& buffers() const { return buffers_; }

 private:
  expr::Expr load(bool is_float, int depth);
  expr::Expr smooth_float(int depth, bool with_score);
  // Without the score, of operations that every backend rounds correctly: what floor and to_int are
  // drawn of, as they would turn another last digit into another integer.
  expr::Expr rounded_float(int depth);

  std::mt19937 random_;
  bool smooth_;
  std::vector<float> floats_;
  std::vector<bfloat16> bfloats_;
  std::vector<float16> halves_;
  std::vector<std::int32_t> ints_;
  std::vector<std::uint8_t> bytes_;
  std::vector<expr::Buffer> buffers_;
};

}  // namespace attn::test
