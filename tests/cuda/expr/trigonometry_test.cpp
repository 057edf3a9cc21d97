// Sine and cosine of device code, compiled for the host, against fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#define __device__
#define __forceinline__ inline
#include "expr/trigonometry.cuh"
#undef __device__
#undef __forceinline__

namespace attn::device {
namespace {

// Error in units in the last place of the exact result.
double ulps(float value, double exact) {
  const float size =
      std::max(std::abs(static_cast<float>(exact)), std::numeric_limits<float>::min());
  return std::abs(value - exact) / (std::nextafter(size, 2.0F) - size);
}

TEST(Trigonometry, IsAccurateForEveryArgument) {
  double worst_sine = 0, worst_cosine = 0;
  const auto look = [&](float x) {
    worst_sine = std::max(worst_sine, ulps(sine(x), std::sin(static_cast<double>(x))));
    worst_cosine = std::max(worst_cosine, ulps(cosine(x), std::cos(static_cast<double>(x))));
  };
  constexpr std::uint32_t kInfinityBits = 0x7f800000;
  for (std::uint32_t bits = 0; bits < kInfinityBits; bits += 1999) {
    look(std::bit_cast<float>(bits));
    look(-std::bit_cast<float>(bits));
  }
  // The nearest floats to multiples of pi/2, up to 2^23 of them, and around pi/4.
  for (int n = 1; n < 1 << 23; n += 1013) look(static_cast<float>(n * 1.5707963267948966));
  for (int i = -9; i < 10; ++i) look(std::bit_cast<float>(0x3f490fda + i));
  look(0x1.f9cbe2p+95F);  // next to a multiple by 2^-30
  EXPECT_LE(worst_sine, 2);
  EXPECT_LE(worst_cosine, 2);
}

TEST(Trigonometry, KeepsZeroAndNan) {
  EXPECT_TRUE(std::signbit(sine(-0.0F)));
  EXPECT_EQ(cosine(-0.0F), 1);
  for (const float x :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(sine(x)));
    EXPECT_TRUE(std::isnan(cosine(x)));
  }
}

}  // namespace
}  // namespace attn::device
