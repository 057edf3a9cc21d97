// Cosines and sines of rotary angles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace attn::cpu {

// cos[i], sin[i] <- cosine and sine of position * inv_freq[i], from double. The library's
// own functions take 20 to 40 ns each, more than moving a row does; this loop has no branch, so
// that compilers turn it into vectors. With the angle n pi + r, |r| <= pi/2 (n is exact, and r is
// within 2^-30 below kFarAngle): the Taylor series of r, of which what is left out is below 2^-33.
inline void set_cosines(double position, const float* inv_freq, std::int64_t count, float* cos,
                        float* sin) {
  constexpr double kFarAngle = 0x1p20, kPi = 0x1.921fb54442d18p+1;
  constexpr double kToInteger = 0x1.8p52;  // sums with it are integers
  bool far = false;                        // or not a number
  for (std::int64_t i = 0; i < count; ++i) {
    far |= !(std::abs(position * double{inv_freq[i]}) < kFarAngle);
  }
  if (far) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double angle = position * double{inv_freq[i]};
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const double angle = position * double{inv_freq[i]};
    const double n = (angle * (1 / kPi) + kToInteger) - kToInteger;
    const double odd = n * 0.5 - ((n * 0.5 + kToInteger) - kToInteger);  // 0, or +-1/2
    const double sign = 1 - 8 * odd * odd;
    const double r = angle - n * kPi, z = -r * r;
    double c = 1, s = 1;  // 1 + z / (1 2) (1 + z / (3 4) (...)), and likewise z / (2 3), z / (4 5)
    for (int k = 14; k > 0; k -= 2) {
      c = 1 + z * (1.0 / ((k - 1) * k)) * c;
      s = 1 + z * (1.0 / (k * (k + 1))) * s;
    }
    cos[i] = static_cast<float>(sign * c);
    sin[i] = static_cast<float>(sign * r * s);
  }
}

}  // namespace attn::cpu
