#pragma once

namespace attn::device {

inline float minus_infinity() { return -INFINITY; }
inline float not_a_number() { return NAN; }
inline float exp2_approximate(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0 : y;
}
inline float max_or_nan(float x, float y) { return x != x || y != y ? x + y : max(x, y); }
inline float reciprocal_approximate(float x) { return 1 / x; }
inline float fma_saturated(float x, float y, float z) {
  const float sum = std::fma(x, y, z);
  return sum > 0 ? min(sum, 1.f) : 0.f;
}

struct BFloat16 {
  static constexpr unsigned kExponent = 0x7f80;
  static unsigned round(float x) {
    const unsigned bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  static unsigned pack(float low, float high) { return round(low) | round(high) << 16; }
  static unsigned fma(unsigned x, unsigned y, unsigned z) {
    const auto half = [&](int i) {
      const auto of = [&](unsigned w) { return double{__uint_as_float(w >> 16 * i << 16)}; };
      return static_cast<float>(of(x) * of(y) + of(z));
    };
    return pack(half(0), half(1));
  }
};
struct Float16 {
  static constexpr unsigned kExponent = 0x7c00;
  static unsigned round(float x) { return ::attn_bits<unsigned short>(static_cast<_Float16>(x)); }
  static unsigned pack(float low, float high) { return round(low) | round(high) << 16; }
  static unsigned fma(unsigned x, unsigned y, unsigned z) {
    const auto half = [&](int i) {
      const auto of = [&](unsigned w) {
        return double{emulator::widen(static_cast<unsigned short>(w >> 16 * i), true)};
      };
      return static_cast<float>(of(x) * of(y) + of(z));
    };
    return pack(half(0), half(1));
  }
};
struct Float32 {};
struct Float8E4M3 {
  static unsigned round(float x) {
    if (x != x) return 0x7f;
    const unsigned sign = std::signbit(x) ? 0x80 : 0;
    const float size = std::abs(x);
    if (size >= 448) return sign | 0x7e;
    // Steps of 2^-9 below 2^-6, and eighths of a power of two above.
    const int exponent = size < 0x1p-6f ? -6 : std::ilogb(size);
    const auto steps = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 3 - exponent)));
    return sign | (static_cast<unsigned>(exponent + 6) * 8 + steps);
  }
  static unsigned pack(float a, float b, float c, float d) {
    return round(a) | round(b) << 8 | round(c) << 16 | round(d) << 24;
  }
};
struct Float8E5M2 {};
template <class A, class B>
struct Float8Pair {};

inline float float_of_half(unsigned short bits) { return emulator::widen(bits, true); }

}  // namespace attn::device
