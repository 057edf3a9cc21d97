// The dropout mask, bit for bit that of docs/numerics.md: one call of Philox4x32-7 gives the bits
// of the eight elements of a row that a thread of an accumulator holds over 32 keys.
//
// Of the four words of Philox's counter two are of the row (query; batch and head) and one is of
// the 32 keys. The first two of the seven rounds multiply only words of one or the other, so they
// are done once a row and once for both rows of a thread; what is left of them is one xor a word.
#pragma once

#include "params.cuh"
#include "ptx/halves.cuh"

namespace attn::device {

struct PhiloxWords {
  unsigned word[4];
};

// What is the same for all elements: the keys of the rounds of Philox, the last word of its
// counter, and the threshold of 16 bits. The state is a number of the problem, from which the host
// makes the keys, or stands in memory (kRngState) and the keys are made here.
template <bool kRngState>
struct Dropout {
  const unsigned (*round_keys)[2];
  unsigned counter3, threshold;

  __device__ __forceinline__ unsigned key(int round, int word) const {
    return round_keys[round][word];
  }
};
template <>
struct Dropout<true> {
  unsigned first_key[2];
  unsigned counter3, threshold;

  __device__ __forceinline__ unsigned key(int round, int word) const {
    return first_key[word] + static_cast<unsigned>(round) * (word == 0 ? 0x9e3779b9u : 0xbb67ae85u);
  }
};

__device__ __forceinline__ unsigned long long philox_product0(unsigned x) {
  return 0xd2511f53ull * x;
}
__device__ __forceinline__ unsigned long long philox_product1(unsigned x) {
  return 0xcd9e8d57ull * x;
}
__device__ __forceinline__ unsigned high_word(unsigned long long x) {
  return static_cast<unsigned>(x >> 32);
}
__device__ __forceinline__ unsigned low_word(unsigned long long x) {
  return static_cast<unsigned>(x);
}

template <bool kRngState>
__device__ __forceinline__ Dropout<kRngState> dropout_of(const ProblemParams& p) {
  if constexpr (kRngState) {
    const unsigned long long address =
        static_cast<unsigned long long>(p.rng_state[1]) << 32 | p.rng_state[0];
    const auto* const state = reinterpret_cast<const unsigned long long*>(address);
    const unsigned long long seed = state[0], offset = state[1];
    return {{low_word(seed), high_word(seed) ^ high_word(offset)},
            low_word(offset),
            p.dropout_threshold};
  } else {
    return {p.dropout_round_keys, p.dropout_counter3, p.dropout_threshold};
  }
}

// Rounds 1 and 2 of the words that depend on the group of 32 keys. pair: lane % 4.
struct DropoutColumns {
  unsigned high, low, other;

  template <bool kRngState>
  __device__ __forceinline__ DropoutColumns(const Dropout<kRngState>& d, int group, int pair) {
    const unsigned long long first = philox_product0(static_cast<unsigned>(4 * group + pair));
    const unsigned long long second = philox_product1(high_word(first) ^ d.counter3 ^ d.key(0, 1));
    high = high_word(second) ^ d.key(1, 0);
    low = low_word(second);
    other = low_word(first) ^ d.key(1, 1);
  }
};

// Dropout of one row of P.
template <bool kRngState>
struct DropoutRow {
  const Dropout<kRngState>& dropout;
  unsigned high, low, other;  // rounds 1 and 2 of the words that depend on the row

  // batch_head: batch * heads_q + head.
  __device__ __forceinline__ DropoutRow(const Dropout<kRngState>& d, unsigned batch_head,
                                        unsigned query)
      : dropout(d) {
    const unsigned long long first = philox_product1(batch_head);
    const unsigned long long second = philox_product0(high_word(first) ^ query ^ d.key(0, 0));
    high = high_word(second);
    low = low_word(second);
    other = low_word(first);
  }

  // The bits of keys 32 group + 8 t + 2 pair + {0, 1}, t = 0..3: word t, the even key's half first.
  __device__ __forceinline__ PhiloxWords words(const DropoutColumns& c) const {
    PhiloxWords x{{c.high ^ other, c.low, high ^ c.other, low}};
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
  __device__ __forceinline__ bool keeps(int key) const {
    const PhiloxWords bits = words(DropoutColumns(dropout, key / 32, key / 2 % 4));
    const unsigned low = key & 8 ? bits.word[1] : bits.word[0];
    const unsigned high = key & 8 ? bits.word[3] : bits.word[2];
    const unsigned word = key & 16 ? high : low;
    return (key & 1 ? word : word << 16) >= dropout.threshold << 16;
  }

  // The two elements of a word. Numbers are compared in the high half, where lower bits do not
  // matter.
  __device__ __forceinline__ void apply(float& even, float& odd, unsigned word) const {
    const unsigned limit = dropout.threshold << 16;
    even = word << 16 >= limit ? even : 0.f;
    odd = word >= limit ? odd : 0.f;
  }
  // The same in 16 bits, packed.
  __device__ __forceinline__ void apply(unsigned& both, unsigned word) const {
    both = keep_halves(both, word, dropout.threshold);
  }
};

// Drops elements of the two rows of P that a thread holds as the operand of a product
// (tile/accumulator.cuh), 2 kCount keys from first_key on, both multiples of 32: they become 0.
// Kept elements are multiplied at the end, with O; the sum of P is taken before.
template <int kCount, bool kRngState>
__device__ __forceinline__ void drop(unsigned (&p)[kCount], const DropoutRow<kRngState> (&rows)[2],
                                     int first_key, int pair) {
  static_assert(kCount % 8 == 0, "whole groups of 32 keys");
#pragma unroll
  for (int group = 0; group < kCount / 8; ++group) {
    const DropoutColumns columns(rows[0].dropout, first_key / 32 + group, pair);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const PhiloxWords bits = rows[i].words(columns);
#pragma unroll
      for (int t = 0; t < 4; ++t) rows[i].apply(p[8 * group + 2 * t + i], bits.word[t]);
    }
  }
}

}  // namespace attn::device
