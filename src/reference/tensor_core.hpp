// How the tensor cores of a GPU add the products of 16-bit numbers and of 8-bit floats
// (docs/numerics.md, "Tensor cores"): a yardstick for what they compute, and what the emulated GPU
// computes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace attn::reference {

// The factors' type: how many products an instruction adds, how many bits are kept below the
// largest exponent of what it adds, and how many of the sum below its own exponent.
struct TensorCore {
  int terms, bits, kept;
};
inline constexpr TensorCore kTensorCore16{16, 25, 23};  // bf16, f16: the sum is a float
inline constexpr TensorCore kTensorCore8{32, 13, 13};   // e4m3, e5m2, on sm_90

// Numbers below the normal ones have exponent 0, infinity and NaN 255.
inline int biased_exponent(float x) {
  return static_cast<int>(std::bit_cast<std::uint32_t>(x) >> 23 & 0xff);
}
inline double power_of_two(int exponent) {  // -1022 to 1023
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// sum + a[0] b[0] + ... of at most core.terms products, as one step of a tensor core has it: all
// terms are cut off core.bits below the largest exponent among them, that of a product being the
// sum of the exponents of its factors, and so is their sum after the last bit that is kept. Example
// of 16 bits: 1 and eight times 2^-25 are 1 + 2^-22, but 1 and eight times 2^-26 are 1.
inline float tensor_core_sum(float sum, const float* a, const float* b, int terms,
                             const TensorCore& core = kTensorCore16) {
  constexpr int kInfinite = 255, kBias = 127;
  // No branch, so that compilers compute several terms at once.
  int largest = biased_exponent(sum);
  int largest_factor = largest;
  for (int k = 0; k < terms; ++k) {
    const int of_a = biased_exponent(a[k]), of_b = biased_exponent(b[k]);
    const int nonzero = static_cast<int>(a[k] != 0) & static_cast<int>(b[k] != 0);
    largest_factor = std::max(largest_factor, std::max(of_a, of_b));
    largest = std::max(largest, nonzero * (of_a + of_b - kBias));
  }
  if (largest_factor == kInfinite) {
    for (int k = 0; k < terms; ++k) sum += a[k] * b[k];
    return sum;
  }
  // All terms are integers below 2^28 in units of the last bit that is kept.
  const int unit = largest - kBias - core.bits;
  const double to_units = power_of_two(-unit);
  auto total = static_cast<std::int64_t>(static_cast<double>(sum) * to_units);
  for (int k = 0; k < terms; ++k) {
    const double product = static_cast<double>(a[k]) * static_cast<double>(b[k]);
    total += static_cast<std::int32_t>(product * to_units);
  }
  const double exact = static_cast<double>(total) * power_of_two(unit);
  constexpr int kDouble = 52;  // bits of a double
  const std::uint64_t past = (std::uint64_t{1} << (kDouble - core.kept)) - 1;
  return static_cast<float>(std::bit_cast<double>(std::bit_cast<std::uint64_t>(exact) & ~past));
}

}  // namespace attn::reference
