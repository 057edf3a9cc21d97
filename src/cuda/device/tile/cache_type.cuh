// How K and V are stored in caches of types of their own (attn/cache_type.hpp): elements one by
// one, and as operands of products.
//
// A type tells kStorageBytes, what strides count; row_bytes(dim), of a row; element(row, i), a
// number without its scale of Inputs; and for operands
//   Quad                 four neighbours of a row, the first at a multiple of 4, as they are stored
//   load(quads, row, i)  those from i on, in shared memory; kQuads<run>: how many at once, of a run
//                        of columns that starts at a multiple of `run`
//   pair<i, j>(a, b)     element i of quad a and element j of quad b, without scales of blocks, as
//                        two Elements in a word; i != j: a is b
//   kScaled              there may be scales of Inputs
//   kBlocked             there are scales of blocks: f16, scale_bits(row, i)
// Rows in shared memory are aligned to 16 bytes, or to as many as divide row_bytes.
#pragma once

#include "device.cuh"
#include "ptx/halves.cuh"
#include "ptx/math.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

// Whether a configuration says how K and V are stored: one of them has a type of its own.
template <class C>
inline constexpr bool kIsCached = requires {
  typename C::CacheK;
};

// The 8-bit floats e4m3 of the two low bytes, as f16, which has all of them.
ATTN_DEVICE unsigned halves_of_e4m3(unsigned bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned y;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %1;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "}"
      : "=r"(y)
      : "r"(bytes));
  return y;
#else
  // The same bits, 7 places up, are 2^-8 of the number; all ones but the sign are NaN.
  const unsigned apart = take_bytes(bytes, 0, 0x4140);
  const unsigned nan = (((apart & 0x007f007fu) + 0x00010001u) & 0x00800080u) * (0x7e00u >> 7);
  constexpr unsigned kTwoTo8 = 0x5c005c00u, kMinusZero = 0x80008000u;
  const unsigned small = ((apart & 0x00800080u) << 8) | ((apart & 0x007f007fu) << 7);
  return Float16::fma(small, kTwoTo8, kMinusZero) | nan;
#endif
}

ATTN_DEVICE constexpr int power_of_two_in(int x, int most) {
  return x % most == 0 ? most : power_of_two_in(x, most / 2);
}

// The largest power of two up to x and up to `most`, which is one.
ATTN_DEVICE constexpr int power_of_two_below(int x, int most) {
  return most <= x ? most : power_of_two_below(x, most / 2);
}

template <int kWords>
struct alignas(4 * kWords) WordsOf {
  unsigned word[kWords];
};

// Two Elements from numbers of another type.
template <class Element>
ATTN_DEVICE float low_half(unsigned pair) {
  return Scalar<Element>::from(static_cast<unsigned short>(pair & 0xffffu));
}
template <class Element>
ATTN_DEVICE float high_half(unsigned pair) {
  return Scalar<Element>::from(static_cast<unsigned short>(pair >> 16));
}
template <class From, class To>
struct Converted {
  static ATTN_DEVICE unsigned pair(unsigned x) {
    return To::pack(low_half<From>(x), high_half<From>(x));
  }
};
template <class Element>
struct Converted<Element, Element> {
  static ATTN_DEVICE unsigned pair(unsigned x) { return x; }
};

inline constexpr unsigned kMinusZeros = 0x80008000u;

// What elements of one or more bytes each have in common: runs are loaded 16 bytes at a time.
template <int kBytes>
struct PlainRows {
  static constexpr int kStorageBytes = kBytes;
  static constexpr bool kBlocked = false;
  static constexpr bool kScaled = kBytes == 1;
  static constexpr int kWords = kBytes;  // of a quad
  static ATTN_DEVICE constexpr int row_bytes(int dim) { return kBytes * dim; }
  struct Quad {
    unsigned word[kWords];
  };
  template <int kRun>
  static constexpr int kQuads = kBytes == 4 ? 1 : power_of_two_in(kBytes* kRun, 16) / (4 * kWords);
  template <int kCount>
  static ATTN_DEVICE void load(Quad (&to)[kCount], const char* row, int column) {
    using Words = WordsOf<kCount * kWords>;
    const Words words = *reinterpret_cast<const Words*>(row + kBytes * column);
#pragma unroll
    for (int i = 0; i < kCount * kWords; ++i) to[i / kWords].word[i % kWords] = words.word[i];
  }
  static ATTN_DEVICE unsigned scale_bits(const char*, int) { return 0; }
};

struct CacheF32 : PlainRows<4> {
  static ATTN_DEVICE float element(const char* row, int i) {
    return reinterpret_cast<const float*>(row)[i];
  }
  template <class Element, int kI, int kJ>
  static ATTN_DEVICE unsigned pair(const Quad& a, const Quad& b) {
    return Element::pack(__uint_as_float(a.word[kI]), __uint_as_float(b.word[kJ]));
  }
};

template <class Stored>
struct CacheHalves : PlainRows<2> {
  static ATTN_DEVICE float element(const char* row, int i) {
    return Scalar<Stored>::from(reinterpret_cast<const unsigned short*>(row)[i]);
  }
  template <class Element, int kI, int kJ>
  static ATTN_DEVICE unsigned pair(const Quad& a, const Quad& b) {
    constexpr unsigned kBytes = (kI % 2 == 0 ? 0x10u : 0x32u) | (kJ % 2 == 0 ? 0x5400u : 0x7600u);
    return Converted<Stored, Element>::pair(take_bytes(a.word[kI / 2], b.word[kJ / 2], kBytes));
  }
};
using CacheBF16 = CacheHalves<BFloat16>;
using CacheF16 = CacheHalves<Float16>;

// Byte i of a and byte j of b, at the low end of each half.
template <int kI, int kJ>
ATTN_DEVICE unsigned bytes_apart(unsigned a, unsigned b) {
  return take_bytes(a, b, static_cast<unsigned>(kI | kI << 4 | (4 + kJ) << 8 | (4 + kJ) << 12));
}

struct CacheE4M3 : PlainRows<1> {
  static ATTN_DEVICE float element(const char* row, int i) {
    return Scalar<Float8E4M3>::from(static_cast<unsigned char>(row[i]));
  }
  template <class Element, int kI, int kJ>
  static ATTN_DEVICE unsigned pair(const Quad& a, const Quad& b) {
    unsigned two = a.word[0] >> 8 * kI;
    if constexpr (kJ != kI + 1) {
      two = take_bytes(a.word[0], b.word[0], static_cast<unsigned>(kI | (4 + kJ) << 4));
    }
    return Converted<Float16, Element>::pair(halves_of_e4m3(two));
  }
};

// e5m2 is the upper half of f16.
struct CacheE5M2 : PlainRows<1> {
  static ATTN_DEVICE float element(const char* row, int i) {
    return Scalar<Float8E5M2>::from(static_cast<unsigned char>(row[i]));
  }
  template <class Element, int kI, int kJ>
  static ATTN_DEVICE unsigned pair(const Quad& a, const Quad& b) {
    constexpr unsigned kBytes = kI << 4 | (4 + kJ) << 12;
    return Converted<Float16, Element>::pair(take_bytes(a.word[0], b.word[0], kBytes) &
                                             0xff00ff00u);
  }
};

// Integers of 8 bits in two's complement, at the low end of each half, are exact in both types.
template <class Element>
struct Integers;
template <>
struct Integers<BFloat16> {
  // 128 + the lower 7 bits, less 128 or, where the eighth is set, 256.
  static ATTN_DEVICE unsigned of_8(unsigned x) {
    return BFloat16::fma(and_or(x, 0x007f007fu, 0x43004300u), 0x3f803f80u,
                         and_or(x, 0x00800080u, 0xc300c300u));
  }
  // 128 + four bits, less 136.
  static ATTN_DEVICE unsigned of_4(unsigned x) {
    return BFloat16::fma(and_or(x, 0x000f000fu, 0x43004300u), 0x3f803f80u, 0xc308c308u);
  }
};
template <>
struct Integers<Float16> {
  // 1024 + 128 + x, less 1152; 1024 + four bits, less 1032.
  static ATTN_DEVICE unsigned of_8(unsigned x) {
    return Float16::fma(and_xor(x, 0x00ff00ffu, 0x64806480u), 0x3c003c00u, 0xe480e480u);
  }
  static ATTN_DEVICE unsigned of_4(unsigned x) {
    return Float16::fma(and_or(x, 0x000f000fu, 0x64006400u), 0x3c003c00u, 0xe408e408u);
  }
};

struct CacheI8 : PlainRows<1> {
  static ATTN_DEVICE float element(const char* row, int i) {
    return static_cast<float>(static_cast<signed char>(row[i]));
  }
  template <class Element, int kI, int kJ>
  static ATTN_DEVICE unsigned pair(const Quad& a, const Quad& b) {
    return Integers<Element>::of_8(bytes_apart<kI, kJ>(a.word[0], b.word[0]));
  }
};

// Blocks of 32 elements behind their scale, as ggml lays them out. Only element() reads blocks that
// are not aligned to 2 bytes.
template <int kBits>
struct CacheBlocks {
  static constexpr int kStorageBytes = 1;
  static constexpr bool kBlocked = true, kScaled = false;
  static constexpr int kBlock = 32, kBlockBytes = 2 + kBlock * kBits / 8;
  static ATTN_DEVICE constexpr int row_bytes(int dim) { return dim / kBlock * kBlockBytes; }
  struct Quad {
    unsigned word[1];
  };
  template <int kRun>
  static constexpr int kQuads = 1;

  static ATTN_DEVICE const unsigned short* halves(const char* row, int column) {
    return reinterpret_cast<const unsigned short*>(row + column / kBlock * kBlockBytes);
  }
  static ATTN_DEVICE unsigned scale_bits(const char* row, int column) {
    return *halves(row, column);
  }
  static ATTN_DEVICE void load(Quad (&to)[1], const char* row, int column) {
    const int at = kBits == 8 ? column % kBlock : column % (kBlock / 2);
    const unsigned short* const from = halves(row, column) + 1 + at / 2;
    unsigned word = from[0] | static_cast<unsigned>(from[1]) << 16;
    if constexpr (kBits == 4) word = word >> (column % kBlock < kBlock / 2 ? 0 : 4) & 0x0f0f0f0fu;
    to[0].word[0] = word;
  }
  template <class Element, int kI, int kJ>
  static ATTN_DEVICE unsigned pair(const Quad& a, const Quad& b) {
    const unsigned x = bytes_apart<kI, kJ>(a.word[0], b.word[0]);
    return kBits == 8 ? Integers<Element>::of_8(x) : Integers<Element>::of_4(x);
  }
  static ATTN_DEVICE float element(const char* row, int i) {
    const auto* const block =
        reinterpret_cast<const unsigned char*>(row + i / kBlock * kBlockBytes);
    const unsigned char* const codes = block + 2;
    const float scale = float_of_half(static_cast<unsigned short>(block[0] | block[1] << 8));
    const int at = i % kBlock;
    if constexpr (kBits == 8) {
      return scale * static_cast<float>(static_cast<signed char>(codes[at]));
    } else {
      const int code = at < kBlock / 2 ? codes[at] & 15 : codes[at - kBlock / 2] >> 4;
      return scale * static_cast<float>(code - 8);
    }
  }
};
using CacheQ8_0 = CacheBlocks<8>;
using CacheQ4_0 = CacheBlocks<4>;

// Integers of blocks times their scales, of the lower and of the upper half of a word, rounded once
// as the product itself would be.
template <class Element>
struct BlockScales;
template <>
struct BlockScales<Float16> {
  unsigned scales;
  ATTN_DEVICE BlockScales(unsigned low, unsigned high) : scales(low | high << 16) {}
  ATTN_DEVICE unsigned times(unsigned x) const { return Float16::fma(x, scales, kMinusZeros); }
};
// An f16 is the sum of two bf16; the product with the smaller one may be rounded.
template <>
struct BlockScales<BFloat16> {
  unsigned large, rest;
  ATTN_DEVICE BlockScales(unsigned low, unsigned high) {
    const float x = float_of_half(static_cast<unsigned short>(low));
    const float y = float_of_half(static_cast<unsigned short>(high));
    large = BFloat16::pack(x, y);
    const float x0 = low_half<BFloat16>(large), y0 = high_half<BFloat16>(large);
    rest = BFloat16::pack(x == x0 ? 0.f : x - x0, y == y0 ? 0.f : y - y0);
  }
  ATTN_DEVICE unsigned times(unsigned x) const {
    return BFloat16::fma(x, large, BFloat16::fma(x, rest, kMinusZeros));
  }
};

// A scale of Inputs; one that is not finite makes its row NaN.
ATTN_DEVICE float cache_scale(float scale) { return fmaf(scale, 0.f, scale); }

// Of a key; key: what key_at() gave. kScaled: whether there are scales.
template <bool kScaled, class Tile, class Params, class Strides>
ATTN_DEVICE float scale_of_key(const Params& p, const Tile& tile, const float* scales,
                               const Strides& strides, int key) {
  if constexpr (!kScaled) return 1.f;
  const long long first = tile.first_key(strides, tile.key_head(p));
  return cache_scale(scales[first + tile.key_row(p, strides, key)]);
}

}  // namespace attn::device
