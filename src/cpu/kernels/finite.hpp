// Which rows of a block hold an infinity or a NaN. Integers alone: a signalling NaN raises nothing.
#pragma once

#include "cpu/kernels/convert.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// The larger of `largest` and the magnitudes of row[0, dim), as the bits of the dtype in 32.
ATTN_INLINE I largest_magnitude(const std::byte* row, int dim, DType source, I largest) {
  const I magnitude = set1(source == DType::f32 ? 0x7fffffff : 0x7fff);
  const int size = source == DType::f32 ? 4 : 2;
  for (int d = 0; d < dim; d += kLanes) {
    const std::byte* from = row + static_cast<std::ptrdiff_t>(d) * size;
    U bits{};
    if (source == DType::f32) {
      if (dim - d >= kLanes) {
        bits = load_as<U>(from);
      } else {
        __builtin_memcpy(&bits, from, static_cast<std::size_t>(dim - d) * 4);
      }
    } else {
      H half{};
      if (dim - d >= kLanes) {
        half = load_as<H>(from);
      } else {
        __builtin_memcpy(&half, from, static_cast<std::size_t>(dim - d) * 2);
      }
      bits = widen(half);
    }
    largest = larger(bit_cast<I>(bits) & magnitude, largest);
  }
  return largest;
}

ATTN_INLINE bool reaches(I largest, std::int32_t limit) {
#if defined(__aarch64__)
  return vmaxvq_s32(largest) >= limit;
#else
  std::int32_t lanes[kLanes];
  store(lanes, largest);
  bool found = false;
  for (const std::int32_t lane : lanes) found |= lane >= limit;
  return found;
#endif
}

// Whether `floats` words of a packed block hold no infinity and no NaN: each an f32, or a pair of
// bf16.
template <DType kOperand>
static bool all_finite(const void* packed, int floats) {
  const std::int32_t* at = static_cast<const std::int32_t*>(packed);
  I largest{}, largest_high{};
  for (int i = 0; i < floats; i += kLanes) {
    const I bits = load(at + i);
    if constexpr (kOperand == DType::f32) {
      largest = larger(bits & 0x7fffffff, largest);
    } else {
      largest = larger(bits & 0x7fff, largest);
      largest_high = larger(bits & 0x7fff0000, largest_high);
    }
  }
  if constexpr (kOperand == DType::f32) return !reaches(largest, 0x7f800000);
  return !reaches(largest, 0x7f80) && !reaches(largest_high, 0x7f800000);
}

// The same of doubles, whole cache lines of them: their high halves have the exponents.
static inline bool all_finite_f64(const double* x, std::ptrdiff_t count) {
  I magnitude{};
  for (int i = 1; i < kLanes; i += 2) magnitude[i] = 0x7fffffff;
  I largest{};
  for (std::ptrdiff_t i = 0; i < count; i += kLanes / 2) {
    largest = larger(load_as<I>(x + i) & magnitude, largest);
  }
  return !reaches(largest, 0x7ff00000);
}

static std::uint64_t nonfinite_plain_rows(const std::byte* const* row, int count, int dim,
                                          DType source) {
  // An exponent whose bits are all 1, which infinities and NaN have.
  const std::int32_t limit = source == DType::f32    ? 0x7f800000
                             : source == DType::bf16 ? 0x7f80
                                                     : 0x7c00;
  I largest{};
  for (int j = 0; j < count; ++j) largest = largest_magnitude(row[j], dim, source, largest);
  if (!reaches(largest, limit)) return 0;
  std::uint64_t rows = 0;
  for (int j = 0; j < count; ++j) {
    const bool found = reaches(largest_magnitude(row[j], dim, source, I{}), limit);
    rows |= std::uint64_t{found} << j;
  }
  return rows;
}

static inline std::uint64_t nonfinite_rows(const std::byte* const* row, int count, int dim,
                                           CacheType source) {
  switch (source) {
    case CacheType::bf16:
      return nonfinite_plain_rows(row, count, dim, DType::bf16);
    case CacheType::f16:
      return nonfinite_plain_rows(row, count, dim, DType::f16);
    case CacheType::i8:
      return 0;
    case CacheType::e4m3:
    case CacheType::e5m2:
    case CacheType::q8_0:
    case CacheType::q4_0: {
      std::uint64_t rows = 0;
      for (int j = 0; j < count; ++j) {
        I largest{};
        for (int d = 0; d < dim; d += kLanes) {
          const F x = dim - d >= kLanes ? load_row(row[j], d, source)
                                        : load_row_part(row[j], d, dim - d, source);
          largest = larger(bit_cast<I>(x) & 0x7fffffff, largest);
        }
        rows |= std::uint64_t{reaches(largest, 0x7f800000)} << j;
      }
      return rows;
    }
    case CacheType::as_q:
    case CacheType::f64:
    case CacheType::f32:
      break;
  }
  return nonfinite_plain_rows(row, count, dim, DType::f32);
}

}  // namespace attn::cpu::ATTN_ISA
