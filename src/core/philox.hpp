// Philox4x32 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3")
// and the dropout bit of one element of P. This is the definition that every backend reproduces bit
// for bit; docs/numerics.md says why Philox has seven rounds here.
//
//   i, j       query and key of (batch, head)
//   key        { lo32(seed), hi32(seed) ^ hi32(offset) }
//   counter    { (j / 64) * 4 + (j % 8) / 2, i, batch * heads_q + head, lo32(offset) }
//   word[0..3] Philox4x32-7(counter, key)
//   tie[t]     the exclusive or of the three words that are not word[t]
//   pair[t]    t < 4:  (word[t] & 0xff00ff00) | (tie[t] & 0x00ff00ff)
//              t >= 4: (word[t - 4] << 8 & 0xff00ff00) | (tie[t - 4] >> 8 & 0x00ff00ff)
//   u          (pair[j / 8 % 8] >> (16 * (j % 2))) & 0x7fff, a 15-bit number
//   threshold  min(32767, round(32768 * probability))
//   kept       if u >= threshold, where threshold <= 0x7c00, else if u < 32768 - threshold
//   scale      1 / (1 - threshold / 32768), by which kept elements are multiplied
//
// One call serves the keys 64 a + 8 t + 2 c + {0, 1}, t = 0..7, of one query: the sixteen elements
// of a row that one thread of a tensor-core accumulator holds over 64 keys (thread c of four holds
// columns 2 c and 2 c + 1 of every 8). Each has a byte of the 128 bits of its own, of which the
// lower seven bits decide 127 times of 128; the lower byte of u, which decides a tie, is made of
// three other elements' bytes, so that any three of the sixteen numbers are independent
// (docs/numerics.md). The bit depends on seed, offset, batch, head, query and key alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace attn::core {

// Rounds of Philox in dropout.
inline constexpr std::uint32_t kPhiloxRounds = 7;

struct PhiloxBlock {
  std::uint32_t word[4];
  friend constexpr bool operator==(const PhiloxBlock&, const PhiloxBlock&) = default;
};

struct PhiloxKey {
  std::uint32_t word[2];
};

// The key of a round, counted from 0.
constexpr PhiloxKey philox_round_key(PhiloxKey key, std::uint32_t round) {
  return {{key.word[0] + round * 0x9e3779b9u,    // golden ratio
           key.word[1] + round * 0xbb67ae85u}};  // sqrt(3) - 1
}

// Philox4x32 of another number of rounds than dropout's is for tests.
template <std::uint32_t kRounds = kPhiloxRounds>
constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const PhiloxKey key = philox_round_key({{key0, key1}}, round);
    const std::uint64_t product0 = 0xd2511f53ULL * counter.word[0];
    const std::uint64_t product1 = 0xcd9e8d57ULL * counter.word[2];
    counter = {{static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key.word[0],
                static_cast<std::uint32_t>(product1),
                static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key.word[1],
                static_cast<std::uint32_t>(product0)}};
  }
  return counter;
}

// probability in [0, 1), to a multiple of 2^-15. 0: nothing is dropped.
inline std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(std::min(32767.0, std::round(32768.0 * probability)));
}

// What kept elements are multiplied by; exact quotient rounded to double.
constexpr double dropout_scale(std::uint32_t threshold) {
  return 32768.0 / (32768.0 - static_cast<double>(threshold));
}

// How a number u tells whether its element is kept: if u >= least, or, flipped, if it is not.
struct DropoutRule {
  std::uint32_t least;
  bool flipped;
};

// A GPU compares two numbers at once as f16 (ptx/halves.cuh). Bit patterns of f16 are in the order
// of what they stand for up to 0x7c00, infinity; the rest is NaN, which counts there as at least
// anything. That is right of u and would be wrong of `least`, which is 0x7c00 or less.
constexpr DropoutRule dropout_rule(std::uint32_t threshold) {
  if (threshold <= 0x7c00) return {threshold, false};
  return {32768 - threshold, true};
}

constexpr bool dropout_keep(std::uint32_t number, std::uint32_t threshold) {
  const DropoutRule rule = dropout_rule(threshold);
  return (number >= rule.least) != rule.flipped;
}

constexpr PhiloxKey dropout_key(std::uint64_t seed, std::uint64_t offset) {
  return {{static_cast<std::uint32_t>(seed),
           static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32)}};
}

// The call that serves (batch_head, query, key); batch_head = batch * heads_q + head < 2^32.
constexpr PhiloxBlock dropout_block(std::uint64_t seed, std::uint64_t offset,
                                    std::uint32_t batch_head, std::uint32_t query,
                                    std::uint32_t key) {
  const PhiloxKey philox = dropout_key(seed, offset);
  return philox4x32(
      {{key / 64 * 4 + key % 8 / 2, query, batch_head, static_cast<std::uint32_t>(offset)}},
      philox.word[0], philox.word[1]);
}

// The 15-bit number of `key` within its block.
constexpr std::uint32_t dropout_number(const PhiloxBlock& block, std::uint32_t key) {
  const std::uint32_t t = key / 8 % 8;
  const std::uint32_t word = block.word[t % 4];
  const std::uint32_t tie =
      block.word[(t + 1) % 4] ^ block.word[(t + 2) % 4] ^ block.word[(t + 3) % 4];
  const std::uint32_t pair = t < 4 ? (word & 0xff00ff00u) | (tie & 0x00ff00ffu)
                                   : (word << 8 & 0xff00ff00u) | (tie >> 8 & 0x00ff00ffu);
  return (pair >> (16 * (key % 2))) & 0x7fffu;
}

// Whether the element of P takes part in O.
constexpr bool dropout_keep(std::uint64_t seed, std::uint64_t offset, std::uint32_t threshold,
                            std::uint32_t batch_head, std::uint32_t query, std::uint32_t key) {
  return dropout_keep(dropout_number(dropout_block(seed, offset, batch_head, query, key), key),
                      threshold);
}

}  // namespace attn::core
