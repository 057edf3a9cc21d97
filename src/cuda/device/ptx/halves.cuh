// Two numbers in a word (PTX ISA, "set", of f16x2), and bytes of two words ("prmt").
#pragma once

#include "device.cuh"

namespace attn::device {

// All bits of each half of x whose lower 15 are at least those of the same half of `least`, which
// is at most 0x7c00. Without their sign, which is the highest bit, patterns of f16 are in the order
// of numbers, up to 0x7c00, infinity; the rest is NaN, which is "not less" than any. So one
// instruction compares both halves, drops the highest bits and copies the outcome to 16 bits.
ATTN_DEVICE unsigned halves_at_least(unsigned x, unsigned least) {
#ifdef __CUDA_ARCH__
  unsigned y;
  asm("{\n"
      ".reg .b32 size;\n"
      "abs.f16x2 size, %1;\n"
      "set.geu.u32.f16x2 %0, size, %2;\n"
      "}"
      : "=r"(y)
      : "r"(x), "r"(least));
  return y;
#else
  return ((x & 0x7fffu) >= (least & 0xffffu) ? 0xffffu : 0u) |
         ((x >> 16 & 0x7fffu) >= least >> 16 ? 0xffff0000u : 0u);
#endif
}

// The same comparison of each half, as 1 or 0 of f16.
ATTN_DEVICE unsigned ones_at_least(unsigned x, unsigned least) {
#ifdef __CUDA_ARCH__
  unsigned y;
  asm("{\n"
      ".reg .b32 size;\n"
      "abs.f16x2 size, %1;\n"
      "set.geu.f16x2.f16x2 %0, size, %2;\n"
      "}"
      : "=r"(y)
      : "r"(x), "r"(least));
  return y;
#else
  return halves_at_least(x, least) & 0x3c003c00u;
#endif
}

// Halves of p times those of `ones`, 1 or 0 of f16. As bf16 that 1 is 2^-7, so that bf16 become
// smaller by as much, exactly but for those below 2^-119.
ATTN_DEVICE unsigned times_ones_f16(unsigned p, unsigned ones) {
#ifdef __CUDA_ARCH__
  unsigned y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(p), "r"(ones));
  return y;
#else
  return p & ones / 0x3c00 * 0xffffu;
#endif
}
inline constexpr float kOneOfF16AsBF16 = 0x1p-7f;
ATTN_DEVICE unsigned times_ones_bf16(unsigned p, unsigned ones) {
#ifdef __CUDA_ARCH__
  unsigned y;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(p), "r"(ones));
  return y;
#else
  const auto product = [&](unsigned high_half, unsigned one) {
    const float x = __builtin_bit_cast(float, high_half) * (one == 0 ? 0.f : kOneOfF16AsBF16);
    return __builtin_bit_cast(unsigned, x) >> 16;
  };
  return product(p << 16, ones & 0xffffu) | product(p & 0xffff0000u, ones >> 16) << 16;
#endif
}

// A word of four bytes of x and y: digit i of `bytes`, from the lowest one, says which is byte i;
// 0 to 3 are those of x, 4 to 7 those of y. So 0x7610 has the low half of x, then the high one of
// y.
ATTN_DEVICE unsigned take_bytes(unsigned x, unsigned y, unsigned bytes) {
#ifdef __CUDA_ARCH__
  unsigned z;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "r"(bytes));
  return z;
#else
  const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
  unsigned z = 0;
  for (int i = 0; i < 4; ++i) {
    z |= static_cast<unsigned>(both >> 8 * (bytes >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return z;
#endif
}

// (x & mask) | bits, or with ^, in one instruction: the compiler takes two where both are
// constants.
ATTN_DEVICE unsigned and_or(unsigned x, unsigned mask, unsigned bits) {
#ifdef __CUDA_ARCH__
  unsigned y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
#else
  return (x & mask) | bits;
#endif
}
ATTN_DEVICE unsigned and_xor(unsigned x, unsigned mask, unsigned bits) {
#ifdef __CUDA_ARCH__
  unsigned y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
#else
  return (x & mask) ^ bits;
#endif
}

// The word whose halves have the signs, the highest bits, of bytes kFirst and kFirst + 2 of x in
// all bits; kFirst: 0 or 1.
template <int kFirst>
ATTN_DEVICE unsigned signs_of_bytes(unsigned x) {
  unsigned y;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(x), "n"(0xaa88 + 0x1111 * kFirst));
  return y;
}

}  // namespace attn::device
