// What every rung of the ladder shares: elements of A and B, where a tile of C lies, and its end
// (bias, activation, rounding).
//
// Reads of C: Element (of A, B), Result (of C: BFloat16, Float16 or Float32), kFloat8, kScaled,
// kBias (0: none, 1: of columns, 2: of rows), kActivation (the enumerators of attn::Activation),
// kMasked (the matrix that has a block mask, 0: none, 1: A, 2: B, 3: C) and kBlock, the side of its
// blocks, kStepsTogetherA, kStepsTogetherB (neighbours along k lie together in A, in B), kAlignedC
// (rows of C begin at multiples of 16 bytes), kFloatOutput (Result is Float32).
#pragma once

#include "device.cuh"
#include "matmul/params.cuh"
#include "ptx/math.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

template <class C>
using Output = typename C::Result;

// Zero outside of the matrix.
template <class C>
ATTN_DEVICE typename Scalar<typename C::Element>::Storage load_a(const MatmulParams& p, int batch,
                                                                 int row, int step) {
  if (row >= p.m || step >= p.k) return 0;
  return *element<typename C::Element>(p.a, batch * p.a_batch + row * p.a_row + step * p.a_step);
}
template <class C>
ATTN_DEVICE typename Scalar<typename C::Element>::Storage load_b(const MatmulParams& p, int batch,
                                                                 int step, int column) {
  if (step >= p.k || column >= p.n) return 0;
  return *element<typename C::Element>(p.b,
                                       batch * p.b_batch + step * p.b_step + column * p.b_column);
}

struct MatmulTile {
  int batch, row, column;  // of its first element
};

// i / n, and i becomes what is left. Most products have a batch of one and few rows of tiles, and a
// division takes some hundred cycles, which the first load of a tile waits for.
ATTN_DEVICE int take_whole(int& i, int n) {
  if (i < n) return 0;
  const int whole = i / n;
  i -= whole * n;
  return whole;
}

// Tiles in the order of work: p.group rows of tiles at a time, column by column, so that the tiles
// which run at once share few rows of A and columns of B, and find them in L2.
ATTN_DEVICE MatmulTile matmul_tile(const MatmulParams& p, int index, int block_m, int block_n) {
  const int batch = take_whole(index, p.m_tiles * p.n_tiles);
  const int first = take_whole(index, p.group * p.n_tiles) * p.group;
  const int column = take_whole(index, min(p.group, p.m_tiles - first));
  return {batch, (first + index) * block_m, column * block_n};
}

// Whether the block of an element of the masked matrix is there.
template <class C>
ATTN_DEVICE bool has_block(const MatmulParams& p, int row, int column) {
  return p.mask[row / C::kBlock * p.mask_row + column / C::kBlock * p.mask_column] != 0;
}
// Whether a tile is there: it lies in one block of C.
template <class C>
ATTN_DEVICE bool has_tile(const MatmulParams& p, const MatmulTile& t) {
  if constexpr (C::kMasked == 3) {
    // Read in any case, so that several reads may be under way.
    const bool inside = t.row < p.m && t.column < p.n;
    return has_block<C>(p, inside ? t.row : 0, inside ? t.column : 0) && inside;
  } else {
    return true;
  }
}
// The first step from `step` on that is multiplied for a tile, which lies in one row of blocks of A
// or column of blocks of B; p.k or more where there is none. Tiles of k lie in one block too.
template <class C>
ATTN_DEVICE int next_step(const MatmulParams& p, MatmulTile t, int step) {
  if constexpr (C::kMasked == 1 || C::kMasked == 2) {
    const auto there = [&](int at) {
      return C::kMasked == 1 ? has_block<C>(p, t.row, at) : has_block<C>(p, at, t.column);
    };
    if ((C::kMasked == 1 ? t.row >= p.m : t.column >= p.n)) return p.k;
    while (step < p.k && !there(step)) step = (step / C::kBlock + 1) * C::kBlock;
  }
  return step;
}

template <int kActivation>
ATTN_DEVICE float activate(float x) {
  if constexpr (kActivation == 1) return x < 0.f ? 0.f : x;
  if constexpr (kActivation == 2) return 0.5f * x * (1.f + erff(x * 0.70710678f));
  if constexpr (kActivation == 3) {
    return 0.5f * x * (1.f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
  }
  if constexpr (kActivation == 4) return x / (1.f + expf(-x));
  return x;
}

// A sum with bias and activation, not rounded.
template <class C>
ATTN_DEVICE float finished(const MatmulParams& p, int row, int column, float sum) {
  if constexpr (C::kScaled) sum *= p.scale_a[0] * p.scale_b[0];
  if constexpr (C::kBias == 1) sum += p.bias[column * p.bias_stride];
  if constexpr (C::kBias == 2) sum += p.bias[row * p.bias_stride];
  return activate<C::kActivation>(sum);
}
template <class C>
ATTN_DEVICE void store_c(const MatmulParams& p, int batch, int row, int column, float sum) {
  if (row >= p.m || column >= p.n) return;
  *element<Output<C>>(p.c, batch * p.c_batch + row * p.c_row + column) =
      Scalar<Output<C>>::to(finished<C>(p, row, column, sum));
}
// Two neighbours of a row, in one store where C's rows allow it.
template <class C>
ATTN_DEVICE void store_pair(const MatmulParams& p, int batch, int row, int column, float x,
                            float y) {
  if constexpr (C::kAlignedC) {
    if (row < p.m && column + 1 < p.n) {
      auto* to = element<Output<C>>(p.c, batch * p.c_batch + row * p.c_row + column);
      x = finished<C>(p, row, column, x);
      y = finished<C>(p, row, column + 1, y);
      if constexpr (C::kFloatOutput) {
        *reinterpret_cast<float2*>(to) = make_float2(x, y);
      } else {
        *reinterpret_cast<unsigned*>(to) = Output<C>::pack(x, y);
      }
      return;
    }
  }
  store_c<C>(p, batch, row, column, x);
  store_c<C>(p, batch, row, column + 1, y);
}

}  // namespace attn::device
