#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <tuple>

namespace attn::core {
namespace {

// Known answers of Random123 (kat_vectors, philox4x32 7): what dropout draws.
TEST(Philox, KnownAnswersOfSevenRounds) {
  EXPECT_EQ(philox4x32({{0, 0, 0, 0}}, 0, 0),
            (PhiloxBlock{{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}}));
  EXPECT_EQ(philox4x32({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff),
            (PhiloxBlock{{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}}));
  EXPECT_EQ(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
            (PhiloxBlock{{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}}));
}

// The same file's, philox4x32 10: the round function, whatever their number.
TEST(Philox, KnownAnswersOfTenRounds) {
  EXPECT_EQ(philox4x32<10>({{0, 0, 0, 0}}, 0, 0),
            (PhiloxBlock{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  EXPECT_EQ(
      philox4x32<10>({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff),
      (PhiloxBlock{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(
      philox4x32<10>({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      (PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Dropout, BitsAreTheDocumentedOnes) {
  std::mt19937_64 random(20240607);
  for (int n = 0; n < 20000; ++n) {
    const std::uint64_t seed = random(), offset = random();
    const auto batch_head = static_cast<std::uint32_t>(random());
    const auto query = static_cast<std::uint32_t>(random() >> 33);
    const auto key = static_cast<std::uint32_t>(random() >> 33);
    const auto threshold = static_cast<std::uint32_t>(random() >> 48);
    const PhiloxBlock bits = philox4x32(
        {{(key / 32) * 4 + (key % 8) / 2, query, batch_head, static_cast<std::uint32_t>(offset)}},
        static_cast<std::uint32_t>(seed),
        static_cast<std::uint32_t>((seed >> 32) ^ (offset >> 32)));
    const std::uint32_t e = ((key / 8) % 4) * 2 + key % 2;
    const std::uint32_t u = (bits.word[e / 2] >> (16 * (e % 2))) & 0xffff;
    ASSERT_EQ(dropout_keep(seed, offset, threshold, batch_head, query, key), u >= threshold)
        << "seed " << seed << " offset " << offset << " key " << key;
  }
}

TEST(Dropout, EveryKeyHasItsOwnBits) {
  std::set<std::tuple<std::uint32_t, std::uint32_t>> seen;  // first counter word, 16-bit slot
  for (std::uint32_t key = 0; key < 4096; ++key) {
    seen.emplace(key / 32 * 4 + key % 8 / 2, key / 8 % 4 * 2 + key % 2);
  }
  EXPECT_EQ(seen.size(), 4096u);
}

TEST(Dropout, Threshold) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 32768u);
  EXPECT_EQ(dropout_threshold(0.1), 6554u);
  EXPECT_EQ(dropout_threshold(1.0 / 65536), 1u);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 65535u);
  EXPECT_EQ(dropout_scale(0), 1.0);
  EXPECT_EQ(dropout_scale(32768), 2.0);
  EXPECT_EQ(dropout_scale(65535), 65536.0);
}

TEST(Dropout, NothingIsDroppedAtZero) {
  for (std::uint32_t key = 0; key < 1000; ++key) EXPECT_TRUE(dropout_keep(1, 2, 0, 3, 4, key));
}

// The share of kept elements is within 5 standard deviations of 1 - probability.
TEST(Dropout, Frequency) {
  for (const double probability : {0.1, 0.5, 0.9}) {
    const std::uint32_t threshold = dropout_threshold(probability);
    const double share = 1.0 - threshold / 65536.0;
    int kept = 0;
    constexpr int kQueries = 200, kKeys = 500, kAll = kQueries * kKeys;
    for (std::uint32_t query = 0; query < kQueries; ++query) {
      for (std::uint32_t key = 0; key < kKeys; ++key) {
        kept += dropout_keep(42, 7, threshold, 5, query, key) ? 1 : 0;
      }
    }
    EXPECT_NEAR(kept, kAll * share, 5 * std::sqrt(kAll * share * (1 - share))) << probability;
  }
}

}  // namespace
}  // namespace attn::core
