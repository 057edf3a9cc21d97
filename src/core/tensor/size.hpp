// Sizes of memory that cannot wrap around. Every product of sizes that memory is asked for by is a
// Size. A number past 2^63 - 1 stays at that, which no allocation grants, so that such a problem is
// refused and not given a small block: sq = sk = 2^30 with four heads a K, V head has 2^62 scores,
// whose 2^64 bytes are 0 in 64 bits.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace attn::core {

class Size {
 public:
  static constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

  constexpr Size() = default;
  // A negative number does not fit. Implicit: integers take part in sums and products of sizes.
  template <std::integral T>
  constexpr Size(T value)  // NOLINT(google-explicit-constructor)
      : value_(value >= 0 && std::in_range<std::int64_t>(value) ? static_cast<std::int64_t>(value)
                                                                : kMost) {}

  // Whether it is below 2^63 - 1.
  constexpr bool fits() const { return value_ < kMost; }
  constexpr std::int64_t value() const { return value_; }
  constexpr std::size_t bytes() const { return static_cast<std::size_t>(value_); }

  // A Size that does not fit makes every sum and product with it one that does not.
  friend constexpr Size operator+(Size a, Size b) {
    std::int64_t sum = 0;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? Size(kMost) : Size(sum);
  }
  friend constexpr Size operator*(Size a, Size b) {
    std::int64_t product = 0;
    if (!a.fits() || !b.fits() || __builtin_mul_overflow(a.value_, b.value_, &product)) {
      return {kMost};
    }
    return {product};
  }
  friend constexpr auto operator<=>(Size a,
                                    Size b) = default;  // NOLINT(modernize-use-nullptr)

 private:
  std::int64_t value_ = 0;
};

// Rounded up to whole multiples of `unit` > 0, and how many those are.
constexpr Size divide_up(Size a, std::int64_t unit) {
  if (!a.fits()) return a;
  return a.value() / unit + (a.value() % unit != 0 ? 1 : 0);
}
constexpr Size round_up(Size a, std::int64_t unit) { return divide_up(a, unit) * unit; }

inline std::string to_string(Size size) {
  return size.fits() ? std::to_string(size.value()) : "2^63 - 1 or more";
}

}  // namespace attn::core
