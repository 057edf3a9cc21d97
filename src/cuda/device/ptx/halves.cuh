// Two numbers in a word (PTX ISA, "set", of f16x2), and bytes of two words ("prmt").
#pragma once

namespace attn::device {

// All bits of each half of x whose lower 15 are at least those of the same half of `least`, which
// is at most 0x7c00. Without their sign, which is the highest bit, patterns of f16 are in the order
// of numbers, up to 0x7c00, infinity; the rest is NaN, which is "not less" than any. So one
// instruction compares both halves, drops the highest bits and copies the outcome to 16 bits.
__device__ __forceinline__ unsigned halves_at_least(unsigned x, unsigned least) {
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

// A word of four bytes of x and y: digit i of `bytes`, from the lowest one, says which is byte i;
// 0 to 3 are those of x, 4 to 7 those of y. So 0x7610 has the low half of x, then the high one of
// y.
__device__ __forceinline__ unsigned take_bytes(unsigned x, unsigned y, unsigned bytes) {
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

// The word whose halves have the signs, the highest bits, of bytes kFirst and kFirst + 2 of x in
// all bits; kFirst: 0 or 1.
template <int kFirst>
__device__ __forceinline__ unsigned signs_of_bytes(unsigned x) {
  unsigned y;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(y) : "r"(x), "n"(0xaa88 + 0x1111 * kFirst));
  return y;
}

}  // namespace attn::device
