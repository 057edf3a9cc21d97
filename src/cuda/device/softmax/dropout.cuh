// The dropout mask, bit for bit that of docs/numerics.md: one call of Philox4x32-7 gives the bits
// of the sixteen elements of a row that a thread of an accumulator holds over 64 keys.
//
// Of the four words of Philox's counter two are of the row (query; batch and head) and one is of
// the 64 keys. The first two of the seven rounds multiply only words of one or the other, so they
// are done once a row and once for both rows of a thread; what is left of them is one xor a word.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/halves.cuh"

namespace attn::device {

// Where the queries of a sequence, and its groups of 64 keys, stand in the problem that bits are
// drawn for: a larger one of which this is a part, where the text before a kernel defines
// ATTN_PLACE_MARGIN. Then cu_seqlens is given whatever the layout is: batch + 1 numbers, all 0
// where it is dense; ATTN_PLACE_MARGIN numbers without meaning; which row of its sequence of the
// whole each row is; numbers without meaning, for rows of tiles that are in no sequence. Without
// it there is nothing of this: even an empty struct would change the machine code.
#ifdef ATTN_PLACE_MARGIN
struct RowPlaces {
  const int* query = nullptr;
  const int* key = nullptr;

  RowPlaces() = default;
  ATTN_DEVICE RowPlaces(const ProblemParams& p, int batch)
      : query(rows_of(p.cu_seqlens_q, p.batch, batch)),
        key(rows_of(p.cu_seqlens_k, p.batch, batch)) {}
  static ATTN_DEVICE const int* rows_of(const void* lengths, int batches, int batch) {
    const int* const starts = static_cast<const int*>(lengths);
    return starts + batches + 1 + ATTN_PLACE_MARGIN + starts[batch];
  }
};
#define ATTN_ROW_PLACES RowPlaces places;
#define ATTN_PLACE_OF_QUERY(d, i) (d).places.query[i]
#define ATTN_PLACE_OF_KEYS(d, group) (d).places.key[64 * (group)] / 64
// A variable `here` is `all` with the places of a sequence.
#define ATTN_TAKE_PLACES(here, all, p, batch) \
  auto here = all;                            \
  here.places = RowPlaces(p, batch)
#else
#define ATTN_ROW_PLACES
#define ATTN_PLACE_OF_QUERY(d, i) (i)
#define ATTN_PLACE_OF_KEYS(d, group) (group)
#define ATTN_TAKE_PLACES(here, all, p, batch) const auto& here = all
#endif

// What one call of Philox gives: the keys 64 a + 8 t + 2 c + {0, 1} of a row, t = 0..7.
struct DropoutCall {
  unsigned word[4];

  // The numbers of keys 8 (t + 4 upper) + 2 c, in the low half, and that + 1; t below 4. A byte of
  // each is its own, the lower one decides ties.
  ATTN_DEVICE unsigned pair(int t, bool upper) const {
    const unsigned tie = word[(t + 1) % 4] ^ word[(t + 2) % 4] ^ word[(t + 3) % 4];
    return take_bytes(word[t], tie, upper ? 0x2705 : 0x3614);
  }
  ATTN_DEVICE unsigned pair(int t) const { return pair(t % 4, t >= 4); }
  // The same as pair(), where t is not known at compile time.
  ATTN_DEVICE unsigned pair_at(int t) const {
    unsigned found = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned x = pair(i, t >= 4);
      if (t % 4 == i) found = x;
    }
    return found;
  }
};

// What is the same for all elements: the keys of the rounds of Philox, the last word of its
// counter, and which numbers are kept. The state is a number of the problem, from which the host
// makes the keys, or stands in memory (kRngState) and the keys are made here.
template <bool kRngState>
struct Dropout {
  const unsigned (*round_keys)[2];
  unsigned counter3;
  DropoutRule rule;
  ATTN_ROW_PLACES

  ATTN_DEVICE unsigned key(int round, int word) const { return round_keys[round][word]; }
};
template <>
struct Dropout<true> {
  unsigned first_key[2];
  unsigned counter3;
  DropoutRule rule;
  ATTN_ROW_PLACES

  ATTN_DEVICE unsigned key(int round, int word) const {
    return first_key[word] + static_cast<unsigned>(round) * (word == 0 ? 0x9e3779b9u : 0xbb67ae85u);
  }
};

ATTN_DEVICE unsigned long long philox_product0(unsigned x) { return 0xd2511f53ull * x; }
ATTN_DEVICE unsigned long long philox_product1(unsigned x) { return 0xcd9e8d57ull * x; }
ATTN_DEVICE unsigned high_word(unsigned long long x) { return static_cast<unsigned>(x >> 32); }
ATTN_DEVICE unsigned low_word(unsigned long long x) { return static_cast<unsigned>(x); }

template <bool kRngState>
ATTN_DEVICE Dropout<kRngState> dropout_of(const ProblemParams& p) {
  if constexpr (kRngState) {
    const unsigned long long address =
        static_cast<unsigned long long>(p.rng_state[1]) << 32 | p.rng_state[0];
    const auto* const state = reinterpret_cast<const unsigned long long*>(address);
    const unsigned long long seed = state[0], offset = state[1];
    return {
        {low_word(seed), high_word(seed) ^ high_word(offset)}, low_word(offset), p.dropout_rule};
  } else {
    return {p.dropout_round_keys, p.dropout_counter3, p.dropout_rule};
  }
}

// With the places of a sequence.
template <bool kRngState>
ATTN_DEVICE Dropout<kRngState> dropout_of(const ProblemParams& p, int batch) {
  ATTN_TAKE_PLACES(d, dropout_of<kRngState>(p), p, batch);
  return d;
}

// All bits of each half of a pair of numbers whose element is kept.
ATTN_DEVICE unsigned kept_halves(unsigned pair, const DropoutRule& rule) {
  return halves_at_least(pair, rule.least) ^ rule.flip;
}
// Whether that of the second half is kept, or of the first.
ATTN_DEVICE bool keeps_half(unsigned pair, bool second, const DropoutRule& rule) {
  return (kept_halves(pair, rule) & (second ? 0x10000u : 1u)) != 0;
}

// Rounds 1 and 2 of the words that depend on the group of 64 keys. pair: lane % 4.
struct DropoutColumns {
  unsigned high, low, other;

  template <bool kRngState>
  ATTN_DEVICE DropoutColumns(const Dropout<kRngState>& d, int group, int pair) {
    const unsigned long long first =
        philox_product0(static_cast<unsigned>(4 * (ATTN_PLACE_OF_KEYS(d, group)) + pair));
    const unsigned long long second = philox_product1(high_word(first) ^ d.counter3 ^ d.key(0, 1));
    high = high_word(second) ^ d.key(1, 0);
    low = low_word(second);
    other = low_word(first) ^ d.key(1, 1);
  }
};

template <class Element>
inline constexpr bool kIsBF16 = Element::kExponent == 0x7f80;
// What undoes that a product drops elements.
template <class Element>
ATTN_DEVICE constexpr float factor_after_product() {
  return kIsBF16<Element> ? 1 / kOneOfF16AsBF16 : 1;
}

// Dropout of one row of P.
template <bool kRngState>
struct DropoutRow {
  const Dropout<kRngState>& dropout;
  unsigned high, low, other;  // rounds 1 and 2 of the words that depend on the row

  // batch_head: batch * heads_q + head.
  ATTN_DEVICE DropoutRow(const Dropout<kRngState>& d, unsigned batch_head, unsigned query)
      : dropout(d) {
    const unsigned long long first = philox_product1(batch_head);
    const unsigned long long second = philox_product0(
        high_word(first) ^ static_cast<unsigned>(ATTN_PLACE_OF_QUERY(d, static_cast<int>(query))) ^
        d.key(0, 0));
    high = high_word(second);
    low = low_word(second);
    other = low_word(first);
  }

  // The numbers of keys 64 group + 8 t + 2 pair + {0, 1}, t = 0..7.
  ATTN_DEVICE DropoutCall call(const DropoutColumns& c) const {
    DropoutCall x{{c.high ^ other, c.low, high ^ c.other, low}};
#pragma unroll
    for (int round = 2; round < kPhiloxRounds; ++round) {
      const unsigned long long product0 = philox_product0(x.word[0]);
      const unsigned long long product1 = philox_product1(x.word[2]);
      x = {{high_word(product1) ^ x.word[1] ^ dropout.key(round, 0), low_word(product1),
            high_word(product0) ^ x.word[3] ^ dropout.key(round, 1), low_word(product0)}};
    }
    return x;
  }

  // Whether the element of one key is kept.
  ATTN_DEVICE bool keeps(int key) const {
    const DropoutCall drawn = call(DropoutColumns(dropout, key / 64, key / 2 % 4));
    const unsigned numbers = drawn.pair_at(key / 8 % 8);
    return keeps_half(numbers, (key & 1) != 0, dropout.rule);
  }

  // Drops of the two elements of a pair what is not kept.
  ATTN_DEVICE void apply(float& even, float& odd, unsigned pair) const {
    even = keeps_half(pair, false, dropout.rule) ? even : 0.f;
    odd = keeps_half(pair, true, dropout.rule) ? odd : 0.f;
  }
  // Does the same to two elements of 16 bits, packed. By a product, which takes half of the clocks,
  // what is kept is divided by factor_after_product<Element>(), and rule.flip has to be 0.
  template <bool kByProduct, class Element>
  ATTN_DEVICE void apply(unsigned& both, unsigned pair) const {
    if constexpr (!kByProduct) {
      both &= kept_halves(pair, dropout.rule);
    } else if constexpr (kIsBF16<Element>) {
      both = times_ones_bf16(both, ones_at_least(pair, dropout.rule.least));
    } else {
      both = times_ones_f16(both, ones_at_least(pair, dropout.rule.least));
    }
  }
};

// Drops elements of the two rows of P that a thread holds as the operand of a product
// (tile/accumulator.cuh), 4 kCount keys from first_key on: they become 0. Both are multiples of 64,
// or the keys are 32 or 96 and first_key a multiple of 32; then half of what is drawn is of no use.
// Kept elements are multiplied at the end, with O; the sum of P is taken before.
template <bool kByProduct, class Element, int kCount, bool kRngState>
ATTN_DEVICE void drop(unsigned (&p)[kCount], const DropoutRow<kRngState> (&rows)[2], int first_key,
                      int pair) {
  static_assert(kCount % 8 == 0, "whole groups of 32 keys");
  constexpr int kPairs = kCount % 16 == 0 ? 8 : 4;  // of a row, of a call
#pragma unroll
  for (int group = 0; group < kCount / (2 * kPairs); ++group) {
    const int key = first_key + 8 * kPairs * group;
    const bool upper = kPairs == 4 && key % 64 != 0;
    const DropoutColumns columns(rows[0].dropout, key / 64, pair);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const DropoutCall drawn = rows[i].call(columns);
#pragma unroll
      for (int t = 0; t < kPairs; ++t) {
        rows[i].template apply<kByProduct, Element>(p[2 * (kPairs * group + t) + i],
                                                    drawn.pair(t % 4, upper || t >= 4));
      }
    }
  }
}

}  // namespace attn::device
