// tanh of float32 problems, and its polynomials near 0: device code compiled for the host, against
// fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "attn/mask.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/codegen/expression_text.hpp"

#define __device__
#define __forceinline__ inline
#include "expr/fast.cuh"

namespace attn::device {
namespace {

constexpr int kAnyRoom = 0x7fffffff;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool good(int room, const SmallTanh& tanh) { return room >= std::bit_cast<int>(tanh.least); }

// Of an ATTN_PRECISE_MATH.
template <class Level>
struct SmallTanhTest : testing::Test {
  static constexpr int kPrecise = Level::value;
  static constexpr double kEnd = kPrecise == 0 ? 0.385 : 0.5;
  static constexpr double kError = kPrecise == 0 ? 4.78e-4 : 2.84e-5;
  static constexpr SmallTanh kTanh = SmallTanhOf<kPrecise>::kValue;

  static float tanh(float x, int& room) { return fast::attn_small_tanh<kPrecise>(x, room); }
  // Of softcap(cap).
  static SmallTanh packed(float cap, double softmax_scale) {
    const auto bytes = cuda::expression_pack({}, softcap(cap), softmax_scale, kPrecise).packed({});
    SmallTanh tanh{};
    std::memcpy(&tanh, bytes.data() + sizeof(float), sizeof(tanh));
    return tanh;
  }
};
using Levels = testing::Types<std::integral_constant<int, 0>, std::integral_constant<int, 1>,
                              std::integral_constant<int, 2>>;
TYPED_TEST_SUITE(SmallTanhTest, Levels, );

TYPED_TEST(SmallTanhTest, AgreesWithTanhUpToItsEnd) {
  double worst = 0;
  for (int i = -20000; i <= 20000; ++i) {
    const auto x = static_cast<float>(i * (TestFixture::kEnd / 20000) * (1 - 1e-5));
    int room = kAnyRoom;
    const double got = TestFixture::tanh(x, room);
    EXPECT_TRUE(good(room, TestFixture::kTanh)) << x;
    if (i == 0) {
      EXPECT_EQ(got, 0);
    } else {
      worst = std::max(worst, std::abs(got / std::tanh(static_cast<double>(x)) - 1));
    }
  }
  EXPECT_LT(worst, TestFixture::kError);
  EXPECT_GT(worst, TestFixture::kError * 0.9);
}

// An error near 0 would be one factor of all scores, and of LSE.
TYPED_TEST(SmallTanhTest, IsExactAtZero) {
  constexpr double kGrows = TestFixture::kPrecise == 0 ? 1.6e-2 : 1.2e-3;
  for (const float x : {1e-30F, 1e-6F, 1e-3F, 0.02F, 0.05F, 0.1F}) {
    int room = kAnyRoom;
    const double got = TestFixture::tanh(x, room);
    const double exact = std::tanh(static_cast<double>(x));
    EXPECT_NEAR(got / exact, 1, kGrows * x * x + 0x1p-22) << x;
  }
}

TYPED_TEST(SmallTanhTest, TellsWhereItEnds) {
  const auto end = static_cast<float>(1.00001 * TestFixture::kEnd);
  for (const float x : {end, 0.7F, 1.0F, 2.0F, 1e4F, 1e30F, kInf}) {
    for (const float sign : {1.0F, -1.0F}) {
      int room = kAnyRoom;
      TestFixture::tanh(sign * x, room);
      EXPECT_FALSE(good(room, TestFixture::kTanh)) << sign * x;
      // And stays so when others follow.
      TestFixture::tanh(0.1F, room);
      TestFixture::tanh(kNaN, room);
      EXPECT_FALSE(good(room, TestFixture::kTanh)) << sign * x;
    }
  }
  int room = kAnyRoom;
  EXPECT_TRUE(std::isnan(TestFixture::tanh(kNaN, room)));
}

TYPED_TEST(SmallTanhTest, PackedGivesExponents) {
  for (const float cap : {16.0F, 20.0F, 30.0F, 50.0F, 1000.0F}) {
    for (const double scale : {1.0, 0.125, 1e-3, 40.0}) {
      const SmallTanh tanh = TestFixture::packed(cap, scale);
      for (int i = -1000; i <= 1000; ++i) {
        const auto dot = static_cast<float>(i * 1.5e-3 * TestFixture::kEnd * cap / scale);
        int room = kAnyRoom;
        const double got = dot * fast::small_tanh_ratio<TestFixture::kPrecise>(dot, tanh, room);
        ASSERT_EQ(good(room, tanh), std::abs(i) < 667) << cap << ' ' << scale << ' ' << i;
        if (!good(room, tanh)) continue;
        const double expected = std::numbers::log2e * cap * std::tanh(dot * scale / cap);
        ASSERT_NEAR(got, expected, TestFixture::kError * std::abs(expected))
            << cap << ' ' << scale << ' ' << i;
      }
    }
  }
}

TYPED_TEST(SmallTanhTest, NothingIsSmallWithAnOddScale) {
  for (const double scale : {-0.125, 0.0, 1e-30, 1e30}) {
    const SmallTanh tanh = TestFixture::packed(30, scale);
    for (const float dot : {0.0F, 1.0F, -1e10F, kInf}) {
      int room = kAnyRoom;
      fast::small_tanh_ratio<TestFixture::kPrecise>(dot, tanh, room);
      EXPECT_FALSE(good(room, tanh)) << scale << ' ' << dot;
    }
  }
}

// Float32 problems are held to float arithmetic. Standard attention's tanh errs by 2 ulp at most;
// 1 - 2 / (exp(2 x) + 1), which was here, errs by 2.9e-7 at 0.3, and by 6e-7 with the exp2 of a
// GPU.
TEST(PreciseTanh, ErrsByTwoUlpAtMost) {
  for (float x = 0x1p-12F; x < 9; x *= 1.0001F) {
    const double exact = std::tanh(static_cast<double>(x));
    ASSERT_NEAR(fast::attn_tanh(x), exact, 2 * 0x1p-23 * exact) << x;
    ASSERT_EQ(fast::attn_tanh(-x), -fast::attn_tanh(x)) << x;
  }
}

}  // namespace
}  // namespace attn::device
