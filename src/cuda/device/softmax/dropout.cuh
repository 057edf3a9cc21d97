// The dropout mask, bit for bit that of docs/numerics.md: one call of Philox4x32-10 gives the bits
// of the eight elements of a row that a thread of an accumulator holds over 32 keys.
#pragma once

namespace attn::device {

struct PhiloxWords {
  unsigned word[4];
};

__device__ __forceinline__ PhiloxWords philox4x32_10(PhiloxWords counter, unsigned key0,
                                                     unsigned key1) {
  // A loop, lest the compiler hold the words of many calls in registers at a time.
#pragma unroll 5
  for (int round = 0; round < 10; ++round) {
    const unsigned long long product0 = 0xd2511f53ull * counter.word[0];
    const unsigned long long product1 = 0xcd9e8d57ull * counter.word[2];
    counter = {{static_cast<unsigned>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<unsigned>(product1),
                static_cast<unsigned>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<unsigned>(product0)}};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return counter;
}

// Dropout of one row of P.
struct DropoutRow {
  unsigned long long seed, offset;
  unsigned threshold;   // of 16 bits
  unsigned batch_head;  // batch * heads_q + head
  unsigned query;

  // The bits of keys 32 group + 8 t + 2 pair + {0, 1}, t = 0..3: word t, the even key's half first.
  __device__ __forceinline__ PhiloxWords words(int group, int pair) const {
    return philox4x32_10({{static_cast<unsigned>(4 * group + pair), query, batch_head,
                           static_cast<unsigned>(offset)}},
                         static_cast<unsigned>(seed),
                         static_cast<unsigned>(seed >> 32) ^ static_cast<unsigned>(offset >> 32));
  }
  // The two elements of a word. Numbers are compared in the high half, where lower bits do not
  // matter.
  __device__ __forceinline__ void apply(float& even, float& odd, unsigned word) const {
    const unsigned limit = threshold << 16;
    even = word << 16 >= limit ? even : 0.f;
    odd = word >= limit ? odd : 0.f;
  }

  // The same in 16 bits, packed.
  __device__ __forceinline__ unsigned applied(unsigned pair, unsigned word) const {
    const unsigned limit = threshold << 16;
    return (word << 16 >= limit ? pair & 0xffffu : 0) | (word >= limit ? pair & 0xffff0000u : 0);
  }

  // Row i of the two rows of P in a thread's accumulator (tile/accumulator.cuh): dropped elements
  // become 0. kCount / 2 keys from first_key on, both multiples of 32; pair: lane % 4. Kept
  // elements are multiplied at the end, with O; the sum of P is taken before.
  template <int kCount>
  __device__ __forceinline__ void apply(float (&s)[kCount], int i, int first_key, int pair) const {
    static_assert(kCount % 16 == 0, "whole groups of 32 keys");
#pragma unroll
    for (int group = 0; group < kCount / 16; ++group) {
      const PhiloxWords bits = words(first_key / 32 + group, pair);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int at = 16 * group + 4 * t + 2 * i;
        apply(s[at], s[at + 1], bits.word[t]);
      }
    }
  }
  // The same for P as the operand of a product, which takes half the registers.
  template <int kCount>
  __device__ __forceinline__ void apply(unsigned (&p)[kCount], int i, int first_key,
                                        int pair) const {
    static_assert(kCount % 8 == 0, "whole groups of 32 keys");
#pragma unroll
    for (int group = 0; group < kCount / 8; ++group) {
      const PhiloxWords bits = words(first_key / 32 + group, pair);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        unsigned& both = p[8 * group + 2 * t + i];
        both = applied(both, bits.word[t]);
      }
    }
  }
};

}  // namespace attn::device
