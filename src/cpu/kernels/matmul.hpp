// The verbs of matrix products with f32 operands. A register tile of C is kProductRows rows of
// three vectors: a step of k is one broadcast a row and three loads for 3 kProductRows FMAs.
#pragma once

#include "attn/matmul.hpp"
#include "cpu/kernels/convert.hpp"
#include "cpu/kernels/math.hpp"
#include "cpu/kernels/pack_f32.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// 24 sums of 32 registers, 12 of 16.
inline constexpr int kProductRows = ATTN_VECTOR_BYTES == 64 ? 8 : 4;
inline constexpr int kProductVectors = 3;
inline constexpr int kProductColumns = kProductVectors * kLanes;
static_assert(kLanes % kProductRows == 0);

// out[panel][step][kPanel lanes] <- the block, zero past its lanes up to a whole vector.
template <int kPanel>
static void pack_panels(const OperandBlock& block, void* packed) {
  const std::ptrdiff_t bytes = block.dtype == DType::f32 ? 4 : 2;
  const std::ptrdiff_t panel_size = std::ptrdiff_t{kPanel} * block.depth;
  float* out = static_cast<float*>(packed);
  const auto put = [&](int lane, int step, F x) __attribute__((always_inline)) {
    if constexpr (kPanel >= kLanes) {
      store(out + lane / kPanel * panel_size + std::ptrdiff_t{step} * kPanel + lane % kPanel, x);
    } else {
      for (int i = 0; i < kLanes; i += kPanel) {
        __builtin_memcpy(out + (lane + i) / kPanel * panel_size + std::ptrdiff_t{step} * kPanel,
                         reinterpret_cast<const float*>(&x) + i, 4 * kPanel);
      }
    }
  };
  const int padded = (block.lanes + kPanel - 1) / kPanel * kPanel;
  if (block.lane_stride == 1) {
    // Step by step, as memory lies.
    for (int step = 0; step < block.depth; ++step) {
      const std::byte* row = block.at + step * block.step_stride * bytes;
      int lane = 0;
      for (; lane + kLanes <= block.lanes; lane += kLanes) {
        put(lane, step, load_row(row, lane, block.dtype));
      }
      if (lane < block.lanes) {
        put(lane, step, load_row_part(row, lane, block.lanes - lane, block.dtype));
        lane += kLanes;
      }
      for (; lane < padded; lane += kLanes) put(lane, step, F{});
    }
    return;
  }
  for (int lane = 0; lane < padded; lane += kLanes) {
    const int lanes = block.lanes - lane < kLanes ? block.lanes - lane : kLanes;
    const std::byte* at = block.at + lane * block.lane_stride * bytes;
    for (int step = 0; step < block.depth; step += kLanes) {
      const int steps = block.depth - step < kLanes ? block.depth - step : kLanes;
      F x[kLanes] = {};
      for (int i = 0; i < lanes; ++i) {
        const std::byte* row = at + i * block.lane_stride * bytes;
        x[i] = steps == kLanes ? load_row(row, step, block.dtype)
                               : load_row_part(row, step, steps, block.dtype);
      }
      transpose(x);
      for (int i = 0; i < steps; ++i) put(lane, step + i, x[i]);
    }
  }
}

// Of the first kVectors vectors of a panel's columns.
template <int kVectors>
ATTN_INLINE void multiply_vectors(const float* a, const float* b, int depth, bool add, float* c,
                                  int ld) {
  F acc[kProductRows][kVectors] = {};
  for (int step = 0; step < depth; ++step, a += kProductRows, b += kProductColumns) {
    F x[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) x[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kProductRows; ++r) {
      const F y = set1(a[r]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(y, x[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kProductRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* at = c + r * ld + v * kLanes;
      store(at, add ? load(at) + acc[r][v] : acc[r][v]);
    }
  }
}

static void multiply_panels_f32(const void* a_panel, const void* b_panel, int depth, bool add,
                                int wanted, float* c, int ld) {
  const float* a = static_cast<const float*>(a_panel);
  const float* b = static_cast<const float*>(b_panel);
  static_assert(kProductVectors == 3);
  // The last panel of 256 columns has 16 of them: a third of the arithmetic.
  if (wanted <= kLanes) return multiply_vectors<1>(a, b, depth, add, c, ld);
  if (wanted <= 2 * kLanes) return multiply_vectors<2>(a, b, depth, add, c, ld);
  multiply_vectors<3>(a, b, depth, add, c, ld);
}

ATTN_INLINE F activate(Activation activation, F x) {
  switch (activation) {
    case Activation::relu:
      return select(x < F{}, F{}, x);
    case Activation::gelu:
      return x * 0.5f * (1.0f + erf(x * 0.70710678f));
    case Activation::gelu_tanh:
      return x * 0.5f * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::silu:
      return x / (1.0f + exp(-x));
    case Activation::none:
      break;
  }
  return x;
}

// x[i] <- activation(x[i] + bias[i]); whole vectors.
static void bias_and_activation(const float* bias, Activation activation, int count, float* x) {
  for (int i = 0; i < count; i += kLanes) {
    const F sum = bias == nullptr ? load(x + i) : load(x + i) + load(bias + i);
    store(x + i, activate(activation, sum));
  }
}

static constexpr ProductVerbs product_f32() {
  return {.rows = kProductRows,
          .columns = kProductColumns,
          .depth_multiple = 1,
          .element_bytes = 4,
          .pack_a = pack_panels<kProductRows>,
          .pack_b = pack_panels<kProductColumns>,
          .multiply = multiply_panels_f32,
          .finish_row = bias_and_activation};
}

}  // namespace attn::cpu::ATTN_ISA
