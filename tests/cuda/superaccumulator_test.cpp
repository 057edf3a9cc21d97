// Sums of gradients that take any order, as device code computes them, compiled for the host,
// against sums of single bits.
#include <algorithm>
#include <atomic>
#include <cstdint>

// What a CUDA compiler brings along. Threads of a test add as those of a GPU do.
// NOLINTBEGIN(readability-identifier-naming)
namespace {
template <class T>
T atomicAdd(T* p, T x) {
  return std::atomic_ref<T>(*p).fetch_add(x, std::memory_order_relaxed);
}
unsigned atomicOr(unsigned* p, unsigned x) {
  return std::atomic_ref<unsigned>(*p).fetch_or(x, std::memory_order_relaxed);
}
int __clzll(long long x) { return __builtin_clzll(static_cast<unsigned long long>(x)); }
}  // namespace
// NOLINTEND(readability-identifier-naming)
using std::min;
#define __device__
#define __forceinline__ inline
#include "expr/superaccumulator.cuh"
#undef __device__
#undef __forceinline__

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <latch>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace attn {
namespace {

using device::Superaccumulator;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int kLowest = -149;  // the exponent of the smallest float

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

bool equal(const Superaccumulator& a, const Superaccumulator& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

Superaccumulator sum_of(const std::vector<double>& xs) {
  Superaccumulator sum{};
  for (const double x : xs) device::add_to_sum(&sum, x);
  return sum;
}

// How often each power of two is in the sum, then its digits, then the nearest float: the first 64
// digits, of which the last one is set where a later one is, in a long double, which has so many.
float exact_sum(const std::vector<double>& xs) {
  std::array<std::int64_t, 448> count{};  // of 2^(kLowest + i)
  for (const double x : xs) {
    int exponent = 0;
    const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(x, &exponent), 53));
    for (int bit = 0; bit < 53; ++bit) {
      if ((std::abs(mantissa) >> bit & 1) == 0) continue;
      count.at(static_cast<std::size_t>(exponent - 53 + bit - kLowest)) += mantissa < 0 ? -1 : 1;
    }
  }
  const auto carry = [&] {
    for (std::size_t i = 0; i + 1 < count.size(); ++i) {
      const std::int64_t digit = count[i] & 1;
      count[i + 1] += (count[i] - digit) / 2;
      count[i] = digit;
    }
  };
  carry();
  const bool negative = count.back() < 0;
  if (negative) {
    for (std::int64_t& c : count) c = -c;
    carry();
  }
  std::size_t first = count.size() - 1;
  while (first > 0 && count[first] == 0) --first;
  std::uint64_t digits = 0;
  bool rest = false;
  for (std::size_t i = 0; i <= first; ++i) {
    if (i < 64) {
      digits = digits << 1 | static_cast<std::uint64_t>(count[first - i]);
    } else {
      rest = rest || count[first - i] != 0;
    }
  }
  const int taken = static_cast<int>(std::min<std::size_t>(first + 1, 64));
  const long double magnitude = std::ldexp(static_cast<long double>(digits | (rest ? 1 : 0)),
                                           static_cast<int>(first) + 1 - taken + kLowest);
  return static_cast<float>(negative ? -magnitude : magnitude);
}

// Sums of float32, as float64 has them: of 53 bits and a sign, the lowest one at an exponent in
// [low, high].
double random_sum(std::mt19937_64& random, int low, int high) {
  const std::uint64_t mantissa = random() >> (11 + random() % 53);
  const int exponent = std::uniform_int_distribution<int>(low, high)(random);
  const double x = std::ldexp(static_cast<double>(mantissa), exponent);
  return random() % 2 == 0 ? x : -x;
}

// Shuffled, and added by several threads at once.
void expect_sum_in_any_order(std::vector<double> xs, std::mt19937_64& random) {
  const Superaccumulator sum = sum_of(xs);
  EXPECT_EQ(bits_of(device::rounded(sum)), bits_of(exact_sum(xs)))
      << device::rounded(sum) << " is not " << exact_sum(xs);
  for (int order = 0; order < 5; ++order) {
    std::ranges::shuffle(xs, random);
    ASSERT_TRUE(equal(sum_of(xs), sum)) << "order " << order;
  }
}

TEST(Superaccumulator, RandomSumsAreExactInAnyOrder) {
  struct Range {
    int low, high;
  };
  for (const auto& [low, high] :
       {Range{kLowest, 128}, Range{-80, -40}, Range{kLowest, kLowest + 4}, Range{kLowest, -100},
        Range{40, 60}, Range{60, 76}, Range{100, 150}}) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      SCOPED_TRACE(::testing::Message()
                   << "from 2^" << low << " to 2^" << high << ", seed " << seed);
      std::mt19937_64 random(seed);
      std::vector<double> xs;
      const std::size_t size = 1 + seed;
      while (xs.size() < size) xs.push_back(random_sum(random, low, high));
      expect_sum_in_any_order(xs, random);
    }
  }
}

// What is left of terms that cancel is far below them.
TEST(Superaccumulator, CancellationLosesNothing) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<double> xs;
    for (int i = 0; i < 40; ++i) {
      xs.push_back(random_sum(random, kLowest, 128));
      xs.push_back(-xs.back());
    }
    EXPECT_EQ(bits_of(device::rounded(sum_of(xs))), 0U);
    EXPECT_TRUE(equal(sum_of(xs), Superaccumulator{}));
    xs.push_back(random_sum(random, kLowest, kLowest + 3));
    expect_sum_in_any_order(xs, random);
  }
}

// Halfway between two floats, and by the smallest float to either side.
TEST(Superaccumulator, TiesGoToEven) {
  std::mt19937_64 random(1);
  const double least = std::ldexp(1.0, kLowest);
  for (int exponent = -120; exponent <= 103; ++exponent) {
    for (const std::uint32_t mantissa : {1U << 23, (1U << 23) + 1, (1U << 24) - 1}) {
      const double half = std::ldexp(static_cast<double>(mantissa) + 0.5, exponent);
      for (const double x : {half, -half}) {
        expect_sum_in_any_order({x}, random);
        expect_sum_in_any_order({x, least}, random);
        expect_sum_in_any_order({x, -least}, random);
      }
    }
  }
}

TEST(Superaccumulator, FloatsAreThemselves) {
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    std::mt19937_64 random(seed);
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(x) || x == 0) continue;
    EXPECT_EQ(bits_of(device::rounded(sum_of({x}))), bits_of(x)) << x;
  }
  // Subnormal ones, of which few are drawn; both zeros are 0.
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto x = std::bit_cast<float>(i * 83'887);
    EXPECT_EQ(bits_of(device::rounded(sum_of({x}))), bits_of(x));
  }
  EXPECT_EQ(bits_of(device::rounded(sum_of({-0.0, -0.0}))), 0U);
}

// Past the range and back, and not back.
TEST(Superaccumulator, OverflowIsInfinite) {
  std::vector<double> xs(1'000, kLargest);
  EXPECT_EQ(device::rounded(sum_of(xs)), kInfinity);
  xs.insert(xs.end(), 999, -kLargest);
  EXPECT_EQ(device::rounded(sum_of(xs)), kLargest);
  xs.insert(xs.end(), 3, -kLargest);
  EXPECT_EQ(device::rounded(sum_of(xs)), -kInfinity);
  const double half = std::ldexp(1.0, 103);  // of the step below infinity
  EXPECT_EQ(device::rounded(sum_of({kLargest, half})), kInfinity);
  EXPECT_EQ(device::rounded(sum_of({kLargest, half, std::ldexp(-1.0, kLowest)})), kLargest);
  // As many as a launch may add, in parts that a thread may have.
  EXPECT_EQ(device::rounded(sum_of({std::ldexp(1.0, 233)})), kInfinity);
  EXPECT_EQ(device::rounded(sum_of({std::ldexp(-1.0, 233)})), -kInfinity);
}

TEST(Superaccumulator, NonFiniteTermsActAsInAdditions) {
  const double nan = std::nan("");
  for (std::vector<double> xs : std::vector<std::vector<double>>{{kInfinity},
                                                                 {-kInfinity},
                                                                 {nan},
                                                                 {-nan},
                                                                 {kInfinity, kInfinity},
                                                                 {-kInfinity, -kInfinity},
                                                                 {kInfinity, -kInfinity},
                                                                 {kInfinity, nan},
                                                                 {-kInfinity, nan},
                                                                 {nan, nan}}) {
    for (const double finite : {0.0, 1.0, -1.0, static_cast<double>(kLargest)}) {
      xs.push_back(finite);
      double expected = 0;
      for (const double x : xs) expected += x;
      const Superaccumulator sum = sum_of(xs);
      const float got = device::rounded(sum);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got)) << got;
      } else {
        EXPECT_EQ(got, expected);
      }
      std::ranges::reverse(xs);
      EXPECT_TRUE(equal(sum_of(xs), sum));
    }
  }
}

// Signs change all the time, so that carries and borrows run through all words.
TEST(Superaccumulator, ThreadsMayAddAtOnce) {
  constexpr std::size_t kThreads = 4;
  std::mt19937_64 random(7);
  std::vector<double> xs;
  for (int i = 0; i < 20'000; ++i) {
    xs.push_back(random_sum(random, kLowest, i % 8 == 0 ? 100 : kLowest + 60));
    xs.push_back(-xs.back());
    xs.push_back(random_sum(random, kLowest, kLowest + 2));
  }
  const Superaccumulator expected = sum_of(xs);
  for (int repeat = 0; repeat < 40; ++repeat) {
    std::ranges::shuffle(xs, random);
    Superaccumulator sum{};
    std::latch all_run(kThreads);
    {
      std::vector<std::jthread> threads;
      for (std::size_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          all_run.arrive_and_wait();
          for (std::size_t i = t; i < xs.size(); i += kThreads) device::add_to_sum(&sum, xs[i]);
        });
      }
    }
    ASSERT_TRUE(equal(sum, expected)) << "repeat " << repeat;
  }
  EXPECT_EQ(bits_of(device::rounded(expected)), bits_of(exact_sum(xs)));
}

}  // namespace
}  // namespace attn
