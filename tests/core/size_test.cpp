#include "core/tensor/size.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace attn::core {
namespace {

constexpr std::int64_t kBig = std::int64_t{1} << 40;

TEST(Size, IsExactBelowItsLimit) {
  EXPECT_EQ((Size(3) * 5 + 7).value(), 22);
  EXPECT_EQ((Size(kBig) * (1 << 22)).value(), std::int64_t{1} << 62);
  EXPECT_TRUE((Size(kBig) * (1 << 22)).fits());
  EXPECT_EQ(round_up(65, 64).value(), 128);
  EXPECT_EQ(round_up(64, 64).value(), 64);
  EXPECT_EQ(divide_up(Size(), 64).value(), 0);
  EXPECT_EQ(to_string(Size(12) * 12), "144");
}

TEST(Size, StaysPastItsLimit) {
  const Size large = Size(kBig) * kBig;
  EXPECT_FALSE(large.fits());
  EXPECT_FALSE((large * 0).fits());
  EXPECT_FALSE((large + 1).fits());
  EXPECT_FALSE((Size(1) * large).fits());
  EXPECT_FALSE(round_up(large, 64).fits());
  EXPECT_FALSE(round_up(Size(Size::kMost - 1), 64).fits());
  EXPECT_FALSE((Size(Size::kMost - 1) + 1).fits());
  EXPECT_FALSE(Size(-1).fits());
  EXPECT_FALSE(Size(UINT64_MAX).fits());
  EXPECT_GT(large, Size(kBig));
  EXPECT_EQ(to_string(large), "2^63 - 1 or more");
}

}  // namespace
}  // namespace attn::core
