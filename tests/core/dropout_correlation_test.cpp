// Elements of P are dropped independently: that one is dropped says nothing about its neighbours,
// nor about the same element of another head, sequence, seed or offset, although the calls of
// Philox that decide may differ in one bit of what goes in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/philox.hpp"

namespace attn::core {
namespace {

// Of one head, from the first query and key on.
constexpr std::uint32_t kQueries = 256, kKeys = 256;
constexpr double kElements = double{kQueries} * kKeys;

// An element and what decides about it.
struct Place {
  std::uint64_t seed, offset;
  std::uint32_t batch_head, query, key;
};

constexpr Place kFirst{20240607, 3, 5, 0, 0};

// Its 15 bits, of which the threshold is asked.
using Number = std::uint32_t (*)(const Place&);

std::uint32_t number(const Place& p) {
  return dropout_number(dropout_block(p.seed, p.offset, p.batch_head, p.query, p.key), p.key);
}

// The same with Philox of fewer rounds.
std::uint32_t number_of_five_rounds(const Place& p) {
  const PhiloxKey key = dropout_key(p.seed, p.offset);
  const PhiloxBlock block = philox4x32<5>({{p.key / 64 * 4 + p.key % 8 / 2, p.query, p.batch_head,
                                            static_cast<std::uint32_t>(p.offset)}},
                                          key.word[0], key.word[1]);
  return dropout_number(block, p.key);
}

// Pairs of elements that differ in one bit, or by a power of two, of one number.
struct Kind {
  std::string name;
  int bits;
  void (*differ)(Place&, int bit);
};

// Neighbours are 1, 2, 4 and so on apart, so in the same call of Philox, the next one, or far off.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"keys", 31, [](Place& p, int bit) { p.key += 1u << bit; }},
      // Of the sixteen elements of a call the ones 1 to 7 further, round again: with half of the
      // keys that are 32 apart these are all pairs of a call, each once.
      {"keys of a call", 7,
       [](Place& p, int bit) {
         const std::uint32_t element =
             (p.key / 8 % 8 * 2 + p.key % 2 + static_cast<std::uint32_t>(bit) + 1) % 16;
         p.key = p.key / 64 * 64 + p.key % 8 / 2 * 2 + element / 2 * 8 + element % 2;
       }},
      {"queries", 31, [](Place& p, int bit) { p.query += 1u << bit; }},
      {"heads", 32, [](Place& p, int bit) { p.batch_head ^= 1u << bit; }},
      {"seeds", 64, [](Place& p, int bit) { p.seed ^= std::uint64_t{1} << bit; }},
      {"offsets", 64, [](Place& p, int bit) { p.offset ^= std::uint64_t{1} << bit; }},
  };
  return all;
}

// x and y are 1 - share where an element and the other one are kept, with the probability `share`,
// else -share. The sum of their products over N independent pairs has the mean 0 and the variance
// N (share (1 - share))^2, also where an element belongs to two pairs, and is all but normal. This
// is that sum in standard deviations.
double correlation(Number number, std::uint32_t threshold, const Kind& kind, int bit) {
  const double share = 1 - threshold / 32768.0;
  int kept = 0, others_kept = 0, both_kept = 0;
  for (std::uint32_t query = 0; query < kQueries; ++query) {
    for (std::uint32_t key = 0; key < kKeys; ++key) {
      Place place = kFirst;
      place.query = query;
      place.key = key;
      const bool keeps = number(place) >= threshold;
      kind.differ(place, bit);
      const bool other_keeps = number(place) >= threshold;
      kept += keeps ? 1 : 0;
      others_kept += other_keeps ? 1 : 0;
      both_kept += keeps && other_keeps ? 1 : 0;
    }
  }
  const double sum = both_kept - share * (kept + others_kept) + share * share * kElements;
  return sum / (share * (1 - share) * std::sqrt(kElements));
}

struct Correlations {
  double largest = 0;  // without its sign
  double squares = 0;  // their sum, which is chi-square of as many degrees as there are bits
};

Correlations correlations(Number number, std::uint32_t threshold, const Kind& kind) {
  Correlations all;
  for (int bit = 0; bit < kind.bits; ++bit) {
    const double one = correlation(number, threshold, kind, bit);
    all.largest = std::max(all.largest, std::abs(one));
    all.squares += one * one;
  }
  return all;
}

// Of a normal variable 5.5 standard deviations are passed once in 26 million times, so by one of
// these 458 in one of 60,000 seeds. Of a chi-square variable of 7 to 64 degrees 6 are passed in one
// of 10,000 or less.
constexpr double kMost = 5.5;
double most_squares(int degrees) { return degrees + 6 * std::sqrt(2.0 * degrees); }

TEST(DropoutCorrelation, NothingTellsOfAnotherElement) {
  for (const double probability : {0.1, 0.5}) {
    for (const Kind& kind : kinds()) {
      const Correlations found = correlations(number, dropout_threshold(probability), kind);
      EXPECT_LT(found.largest, kMost) << kind.name << " at " << probability;
      EXPECT_LT(found.squares, most_squares(kind.bits)) << kind.name << " at " << probability;
    }
  }
}

// Five rounds are too few, and this is how it shows.
TEST(DropoutCorrelation, OfFiveRoundsIsNoticed) {
  const std::uint32_t threshold = dropout_threshold(0.1);
  for (const Kind& kind : kinds()) {
    if (kind.name != "queries" && kind.name != "offsets") continue;
    const Correlations found = correlations(number_of_five_rounds, threshold, kind);
    EXPECT_GT(found.largest, 2 * kMost) << kind.name;
    EXPECT_GT(found.squares, 2 * most_squares(kind.bits)) << kind.name;
  }
}

}  // namespace
}  // namespace attn::core
