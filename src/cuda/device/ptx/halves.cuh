// Two numbers of 16 bits in a word (PTX ISA, "max.u16x2"), and bytes of two words ("prmt").
#pragma once

namespace attn::device {

// For each half of x a bit, the lowest of the half: whether it is at least t, a number of 16 bits.
// max(x, t - 1) - (t - 1) is 0 where it is not: t = 3 makes 0, 0, 1, 7 of 1, 2, 3, 9.
__device__ __forceinline__ unsigned halves_at_least(unsigned x, unsigned t) {
#if __CUDA_ARCH__ >= 900
  const unsigned base = t == 0 ? 0 : t - 1, least = t == 0 ? 1 : base;
  unsigned y;
  asm("{\n"
      ".reg .b32 above;\n"
      "max.u16x2 above, %1, %2;\n"
      "add.u16x2 above, above, %3;\n"
      "min.u16x2 %0, above, %4;\n"
      "}"
      : "=r"(y)
      : "r"(x), "r"(least * 0x10001u), "r"((0u - base & 0xffffu) * 0x10001u), "r"(0x10001u));
  return y;
#else
  return (x << 16 >= t << 16 ? 1u : 0u) | (x >= t << 16 ? 0x10000u : 0u);
#endif
}
// `both` with zeros in halves for which that of x is below t.
__device__ __forceinline__ unsigned keep_halves(unsigned both, unsigned x, unsigned t) {
#if __CUDA_ARCH__ >= 900
  return both & halves_at_least(x, t) * 0xffffu;
#else
  if (x << 16 < t << 16) both &= 0xffff0000u;
  if (x < t << 16) both &= 0xffffu;
  return both;
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
