// The verbs of matrix products with f32 operands, or bf16 pairs for VDPBF16PS. A register tile of C
// is kProductRows rows of three vectors: a word of k (a step of f32, or a pair of steps) is one
// broadcast a row and three loads for 3 kProductRows FMAs or dot products.
#pragma once

#include "attn/matmul.hpp"
#include "cpu/kernels/block_format.hpp"
#include "cpu/kernels/convert.hpp"
#include "cpu/kernels/math.hpp"
#include "cpu/kernels/pack_f32.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// 24 sums of 32 registers, 12 of 16.
inline constexpr int kProductRows = kManyRegisters ? 8 : 4;
inline constexpr int kProductVectors = 3;
inline constexpr int kProductColumns = kProductVectors * kLanes;
static_assert(kLanes % kProductRows == 0 || kProductRows % kLanes == 0);

// What a 32-bit lane of a packed panel holds: an f32, or the bf16 of two neighbouring steps.
struct F32Words {
  static constexpr int kSteps = 1;
  // One step of lanes that are neighbours in memory; `count` of them, the others zero.
  ATTN_INLINE F load_lanes(const OperandBlock& block, int lane, int step, int count) {
    const std::byte* row = block.at + step * block.step_stride * bytes(block);
    return load_elements(row, lane, count, block.dtype);
  }
  // kLanes words of a lane whose steps are neighbours in memory; `count` steps, the others zero.
  ATTN_INLINE F load_steps(const std::byte* row, int step, int count, const OperandBlock& block) {
    if (block.format != BlockFormat::none) return load_block(row, step, block.format);
    return load_elements(row, step, count, block.dtype);
  }
  ATTN_INLINE F load_elements(const std::byte* row, int first, int count, DType dtype) {
    return count >= kLanes ? load_row(row, first, dtype) : load_row_part(row, first, count, dtype);
  }
  // Of an element; of blocks, what strides count.
  ATTN_INLINE std::ptrdiff_t bytes(const OperandBlock& block) {
    if (block.format != BlockFormat::none) return 1;
    return block.dtype == DType::f32 ? 4 : 2;
  }
  ATTN_INLINE F broadcast(const float* a) { return set1(*a); }
  ATTN_INLINE F multiply_add(F a, F b, F sum) { return fma(a, b, sum); }
#if defined(__aarch64__)
  template <int kLane>
  ATTN_INLINE F multiply_add_element(F a, F b, F sum) {
    return fma_element<kLane>(a, b, sum);
  }
#endif
};

// Half a vector, which holds the lanes of a panel that is narrower than a vector.
typedef float HalfVector __attribute__((vector_size(ATTN_VECTOR_BYTES / 2)));

// out[panel][word][kPanel lanes] <- the block, whose lanes are neighbours in memory: step by step
// over as many lanes as leave few streams to be written. A vector of a word asks for the line that
// it is part of in one of the word's steps, kRowsAhead words on.
template <int kPanel, class Words>
ATTN_INLINE void pack_steps(const OperandBlock& block, int words, float* out) {
  constexpr int kChunk = (kPanel < kLanes ? 8 : 2) * kPanel * Words::kSteps;
  const int padded = (block.lanes + kPanel - 1) / kPanel * kPanel;
  const std::ptrdiff_t bytes = Words::bytes(block);
  for (int first = 0; first < padded; first += kChunk) {
    const int end = padded - first < kChunk ? padded : first + kChunk;
    for (int word = 0; word < words; ++word) {
      const int step = word * Words::kSteps;
      const int ahead = step + kRowsAhead * Words::kSteps;
      for (int lane = first; lane < end; lane += kLanes) {
        const int count = block.lanes - lane < kLanes ? block.lanes - lane : kLanes;
        F x{};
        if (count > 0) x = Words::load_lanes(block, lane, step, count);
        const int asked = ahead + lane / kLanes % Words::kSteps;
        if (asked < block.depth)
          __builtin_prefetch(block.at + (asked * block.step_stride + lane) * bytes);
        float* to =
            out + lane / kPanel * std::ptrdiff_t{kPanel} * words + std::ptrdiff_t{word} * kPanel;
        if constexpr (kPanel < kLanes) {
          HalfVector half[2];
          __builtin_memcpy(half, &x, sizeof(x));
          __builtin_memcpy(to, &half[0], sizeof(half[0]));
          __builtin_memcpy(to + std::ptrdiff_t{kPanel} * words, &half[1], sizeof(half[1]));
        } else {
          store(to + lane % kPanel, x);
        }
      }
    }
  }
}

// Packs a block whose steps are neighbours in memory into the same order.
template <int kPanel, class Words>
ATTN_INLINE void pack_lanes(const OperandBlock& block, int words, float* out) {
  constexpr int kGroup = kPanel < kLanes ? kPanel : kLanes;  // lanes that are transposed together
  constexpr int kWords = kLanes / kGroup;                    // of a vector then
  const std::ptrdiff_t bytes = Words::bytes(block), row = block.lane_stride * bytes;
  const int padded = (block.lanes + kPanel - 1) / kPanel * kPanel;
  for (int lane = 0; lane < padded; lane += kGroup) {
    const int lanes = block.lanes - lane < kGroup ? block.lanes - lane : kGroup;
    const int ahead = block.lanes - lane - lanes;  // lanes of the next groups
    const std::byte* at = block.at + lane * row;
    float* to = out + lane / kPanel * std::ptrdiff_t{kPanel} * words + lane % kPanel;
    for (int word = 0; word < words; word += kLanes) {
      const int step = word * Words::kSteps;
      F x[kGroup] = {};
      // Loops whose counts are constants keep x in registers.
      if (ahead >= kGroup && block.depth - step >= kLanes * Words::kSteps) {
#pragma GCC unroll 16
        for (int i = 0; i < kGroup; ++i) {
          x[i] = Words::load_steps(at + i * row, step, kLanes * Words::kSteps, block);
          __builtin_prefetch(at + (kGroup + i) * row + step * bytes);
        }
        transpose(x);
#pragma GCC unroll 16
        for (int i = 0; i < kGroup; ++i) {
          store(to + std::ptrdiff_t{word + i * kWords} * kPanel, x[i]);
        }
        continue;
      }
      for (int i = 0; i < lanes; ++i) {
        x[i] = Words::load_steps(at + i * row, step, block.depth - step, block);
        if (i < ahead) __builtin_prefetch(at + (kGroup + i) * row + step * bytes);
      }
      transpose(x);
      for (int i = 0; i < kGroup && word + i * kWords < words; ++i) {
        store(to + std::ptrdiff_t{word + i * kWords} * kPanel, x[i]);
      }
    }
  }
}

template <int kPanel, class Words>
static void pack_panels(const OperandBlock& block, void* packed) {
  static_assert(kPanel % kLanes == 0 || 2 * kPanel == kLanes);
  const int words = (block.depth + Words::kSteps - 1) / Words::kSteps;
  float* out = static_cast<float*>(packed);
  if (block.lane_stride == 1) return pack_steps<kPanel, Words>(block, words, out);
  pack_lanes<kPanel, Words>(block, words, out);
}

// Multiplies by the first kVectors vectors of a panel's columns.
template <int kVectors, class Words>
ATTN_INLINE void multiply_vectors(const float* a, const float* b, int words, bool add, float* c,
                                  int ld) {
  F acc[kProductRows][kVectors] = {};
  for (int word = 0; word < words; ++word, a += kProductRows, b += kProductColumns) {
    F x[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) x[v] = load(b + v * kLanes);
    if constexpr (kByElement) {
      F y[kProductRows / kLanes];
#pragma GCC unroll 2
      for (int i = 0; i < kProductRows / kLanes; ++i) y[i] = load(a + i * kLanes);
      for_each_number<kProductRows>([&]<int kRow>() __attribute__((always_inline)) {
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) {
          acc[kRow][v] = Words::template multiply_add_element<kRow % kLanes>(y[kRow / kLanes], x[v],
                                                                             acc[kRow][v]);
        }
      });
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kProductRows; ++r) {
        const F y = Words::broadcast(a + r);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) acc[r][v] = Words::multiply_add(y, x[v], acc[r][v]);
      }
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

template <class Words>
static void multiply_panels(const void* a_panel, const void* b_panel, int depth, bool add,
                            int wanted, float* c, int ld) {
  const float* a = static_cast<const float*>(a_panel);
  const float* b = static_cast<const float*>(b_panel);
  const int words = (depth + Words::kSteps - 1) / Words::kSteps;
  static_assert(kProductVectors == 3);
  // The last panel of 256 columns has 16 of them: a third of the arithmetic.
  if (wanted <= kLanes) return multiply_vectors<1, Words>(a, b, words, add, c, ld);
  if (wanted <= 2 * kLanes) return multiply_vectors<2, Words>(a, b, words, add, c, ld);
  multiply_vectors<3, Words>(a, b, words, add, c, ld);
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

// x[i] <- activation(x[i] + bias), of a row of a part of C; whole vectors.
ATTN_INLINE void bias_and_activation(const OutputBlock& out, int row, float* x) {
  F of_row{};
  if (out.bias_of_rows != nullptr) of_row = set1(out.bias_of_rows[row * out.row_bias_stride]);
  for (int i = 0; i < out.columns; i += kLanes) {
    F sum = load(x + i);
    if (out.bias_of_columns != nullptr) sum += load(out.bias_of_columns + i);
    if (out.bias_of_rows != nullptr) sum += of_row;
    store(x + i, activate(out.activation, sum));
  }
}

static void finish_product(float* sums, int ld, const OutputBlock& out) {
  if (out.bias_of_columns != nullptr || out.bias_of_rows != nullptr ||
      out.activation != Activation::none) {
    for (int i = 0; i < out.rows; ++i) bias_and_activation(out, i, sums + std::ptrdiff_t{i} * ld);
  }
  const int whole = out.columns / kLanes * kLanes;
  with_dtype(out.dtype, [&]<DType kTarget>() {
    constexpr int kBytes = kTarget == DType::f32 ? 4 : 2;
    for (int i = 0; i < out.rows; ++i) {
      const float* x = sums + std::ptrdiff_t{i} * ld;
      std::byte* row = out.at + i * out.row_bytes;
      if (i + 1 < out.rows) {  // the next row's lines come while this one is stored
        for (int at = 0; at < whole * kBytes; at += 64) {
          __builtin_prefetch(row + out.row_bytes + at, 1);
        }
      }
      for (int j = 0; j < whole; j += kLanes) store_row(row, j, kLanes, kTarget, load(x + j));
      if (whole < out.columns) {
        store_row(row, whole, out.columns - whole, kTarget, load(x + whole));
      }
    }
  });
}

template <class Words>
static constexpr ProductVerbs product_of() {
  return {.rows = kProductRows,
          .columns = kProductColumns,
          .depth_multiple = Words::kSteps,
          .element_bytes = 4 / Words::kSteps,
          .pack_a = pack_panels<kProductRows, Words>,
          .pack_b = pack_panels<kProductColumns, Words>,
          .multiply = multiply_panels<Words>,
          .finish = finish_product};
}
static constexpr ProductVerbs product_f32() { return product_of<F32Words>(); }

}  // namespace attn::cpu::ATTN_ISA
