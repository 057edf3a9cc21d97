#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <tuple>
#include <vector>

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
  for (int draw = 0; draw < 20000; ++draw) {
    const std::uint64_t seed = random(), offset = random();
    const auto batch_head = static_cast<std::uint32_t>(random());
    const auto query = static_cast<std::uint32_t>(random() >> 33);
    const auto key = static_cast<std::uint32_t>(random() >> 33);
    const auto threshold = static_cast<std::uint32_t>(random() >> 49);
    const PhiloxBlock bits = philox4x32(
        {{(key / 64) * 4 + (key % 8) / 2, query, batch_head, static_cast<std::uint32_t>(offset)}},
        static_cast<std::uint32_t>(seed),
        static_cast<std::uint32_t>((seed >> 32) ^ (offset >> 32)));
    // The element's own byte, and the one that decides ties.
    const auto byte = [&](std::uint32_t word, std::uint32_t n) {
      return bits.word[word % 4] >> (8 * n) & 0xff;
    };
    const std::uint32_t word = key / 8 % 4, upper = key / 32 % 2, n = 2 * (key % 2);
    const std::uint32_t own = byte(word, n + 1 - upper) & 0x7f;
    const std::uint32_t tie =
        byte(word + 1, n + upper) ^ byte(word + 2, n + upper) ^ byte(word + 3, n + upper);
    const std::uint32_t u = 256 * own + tie;
    const bool kept = threshold <= 0x7c00 ? u >= threshold : u < 32768 - threshold;
    ASSERT_EQ(dropout_keep(seed, offset, threshold, batch_head, query, key), kept)
        << "seed " << seed << " offset " << offset << " key " << key << " threshold " << threshold;
  }
}

// Of all numbers as many are kept as the factor of kept elements says, whichever way they are
// compared.
TEST(Dropout, KeepsAsManyNumbersAsItsScaleSays) {
  for (const std::uint32_t threshold :
       {0u, 1u, 3277u, 16384u, 0x7bffu, 0x7c00u, 0x7c01u, 0x7ffeu, 0x7fffu}) {
    std::uint32_t kept = 0;
    for (std::uint32_t number = 0; number < 32768; ++number) {
      kept += dropout_keep(number, threshold) ? 1 : 0;
    }
    EXPECT_EQ(kept, 32768 - threshold);
    EXPECT_EQ(dropout_scale(threshold), 32768.0 / kept);
  }
}

// A GPU compares with it as f16, of which patterns above that of infinity are no numbers.
TEST(Dropout, NumbersAreComparedWithNumbersOfF16) {
  for (std::uint32_t threshold = 0; threshold < 32768; ++threshold) {
    ASSERT_LE(dropout_rule(threshold).least, 0x7c00u) << threshold;
  }
}

TEST(Dropout, EveryKeyHasItsOwnBits) {
  // A call is of one bit: the numbers that it moves above 255 are those of one key. The highest bit
  // of each byte moves none.
  std::set<std::tuple<std::uint32_t, int>> seen;  // first counter word, bit
  for (int bit = 0; bit < 128; ++bit) {
    PhiloxBlock block{};
    block.word[bit / 32] = 1u << (bit % 32);
    for (std::uint32_t key = 0; key < 4096; ++key) {
      if (dropout_number(block, key) > 255) seen.emplace(key / 64 * 4 + key % 8 / 2, bit);
    }
  }
  EXPECT_EQ(seen.size(), 7 * 4096u);
}

// Of independent bits any three numbers of a call are independent: as linear maps of the 128 bits
// they have 45 independent rows, so that each choice of three values is as likely as any other.
TEST(Dropout, AnyThreeNumbersOfACallAreIndependent) {
  const auto bits_of = [](std::uint32_t key) {  // 15 rows of 128 bits
    std::vector<std::bitset<128>> rows(15);
    for (int bit = 0; bit < 128; ++bit) {
      PhiloxBlock block{};
      block.word[bit / 32] = 1u << (bit % 32);
      const std::uint32_t number = dropout_number(block, key);
      for (std::size_t row = 0; row < 15; ++row) {
        rows[row][static_cast<std::size_t>(bit)] = (number >> row & 1) != 0;
      }
    }
    return rows;
  };
  const auto rank = [](std::vector<std::bitset<128>> rows) {
    int found = 0;
    for (std::size_t bit = 0; bit < 128; ++bit) {
      const auto pivot = std::ranges::find_if(rows, [&](const auto& row) { return row[bit]; });
      if (pivot == rows.end()) continue;
      const std::bitset<128> row = *pivot;
      rows.erase(pivot);
      for (auto& other : rows) {
        if (other[bit]) other ^= row;
      }
      ++found;
    }
    return found;
  };
  std::vector<std::uint32_t> keys;  // of a call
  for (std::uint32_t key = 0; key < 64; ++key) {
    if (key % 8 < 2) keys.push_back(key);
  }
  for (std::size_t first = 0; first < keys.size(); ++first) {
    for (std::size_t second = 0; second < first; ++second) {
      for (std::size_t third = 0; third < second; ++third) {
        auto rows = bits_of(keys[first]);
        std::ranges::copy(bits_of(keys[second]), std::back_inserter(rows));
        std::ranges::copy(bits_of(keys[third]), std::back_inserter(rows));
        EXPECT_EQ(rank(rows), 45) << keys[first] << ", " << keys[second] << ", " << keys[third];
      }
    }
  }
}

TEST(Dropout, Threshold) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 16384u);
  EXPECT_EQ(dropout_threshold(0.1), 3277u);
  EXPECT_EQ(dropout_threshold(31.0 / 32), 0x7c00u);
  EXPECT_EQ(dropout_threshold(1.0 / 32768), 1u);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 32767u);
  EXPECT_EQ(dropout_scale(0), 1.0);
  EXPECT_EQ(dropout_scale(16384), 2.0);
  EXPECT_EQ(dropout_scale(32767), 32768.0);
}

TEST(Dropout, NothingIsDroppedAtZero) {
  for (std::uint32_t key = 0; key < 1000; ++key) EXPECT_TRUE(dropout_keep(1, 2, 0, 3, 4, key));
}

// The share of kept elements is within 5 standard deviations of 1 - probability.
TEST(Dropout, Frequency) {
  for (const double probability : {1.0 / 32768, 0.1, 0.5, 0.9, 31.0 / 32, 0.97, 0.999}) {
    const std::uint32_t threshold = dropout_threshold(probability);
    const double share = 1.0 - threshold / 32768.0;
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
