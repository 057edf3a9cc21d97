// The verbs of matrix products on VDPBF16PS and BFDOT: those of f32, on pairs.
#pragma once

#include "cpu/kernels/bf16.hpp"
#include "cpu/kernels/matmul.hpp"

namespace attn::cpu::ATTN_ISA {

struct Bf16Pairs {
  static constexpr int kSteps = 2;
  ATTN_INLINE F load_lanes(const OperandBlock& block, int lane, int step, int count) {
    const std::byte* even = block.at + 2 * (step * block.step_stride + lane);
    const std::byte* odd = step + 1 < block.depth ? even + 2 * block.step_stride : nullptr;
    if (count == kLanes && odd != nullptr) {
      return bit_cast<F>(widen(load_as<H>(even)) | widen(load_as<H>(odd)) << 16);
    }
    return bit_cast<F>(load_pairs(even, odd, 0, count));
  }
  ATTN_INLINE F load_steps(const std::byte* row, int step, int count, const OperandBlock&) {
    if (count >= 2 * kLanes) return load_as<F>(row + 2 * std::ptrdiff_t{step});
    F x{};
    __builtin_memcpy(&x, row + 2 * std::ptrdiff_t{step}, 2 * static_cast<std::size_t>(count));
    return x;
  }
  ATTN_INLINE std::ptrdiff_t bytes(const OperandBlock&) { return 2; }
  ATTN_INLINE F broadcast(const float* a) {
    std::uint32_t pair;  // as a float it may be a signalling NaN
    __builtin_memcpy(&pair, a, sizeof(pair));
    return bit_cast<F>(set1(pair));
  }
  ATTN_INLINE F multiply_add(F a, F b, F sum) {
    return dot_pairs(bit_cast<U>(a), bit_cast<U>(b), sum);
  }
#if defined(__aarch64__)
  template <int kLane>
  ATTN_INLINE F multiply_add_element(F a, F b, F sum) {
    return dot_pair<kLane>(bit_cast<U>(a), bit_cast<U>(b), sum);
  }
#endif
};

static constexpr ProductVerbs product_bf16() { return product_of<Bf16Pairs>(); }

}  // namespace attn::cpu::ATTN_ISA
