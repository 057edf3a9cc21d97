// The three matrix products of attention with f32 operands. Each is a register tile of
// kRegisterKeys x kVectors accumulators: one broadcast feeds kVectors FMAs, one vector load feeds
// kRegisterKeys.
#pragma once

#include "cpu/kernels/vec.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// body.template operator()<kCount>(first) over [0, n) in steps of kRegisterKeys; the rest in one
// smaller tile.
template <int kCount, class Body>
ATTN_INLINE void register_tail(int first, int rest, const Body& body) {
  if constexpr (kCount > 0) {
    if (rest == kCount) {
      body.template operator()<kCount>(first);
    } else {
      register_tail<kCount - 1>(first, rest, body);
    }
  }
}
template <int kStep = kRegisterKeys, class Body>
ATTN_INLINE void for_register_tiles(int n, const Body& body) {
  int first = 0;
  for (; first + kStep <= n; first += kStep) body.template operator()<kStep>(first);
  register_tail<kStep - 1>(first, n - first, body);
}

static void scores_f32(const void* q_t, const void* k, int keys, int dim, float* s,
                       float* row_max_out) {
  const float* q = static_cast<const float*>(q_t);
  const int ld = leading_dim(dim);
  F row_max[kVectors];
  for (F& m : row_max) m = set1(-__builtin_inff());
  for_register_tiles(
      keys, [&]<int kCount>(int key) __attribute__((always_inline)) {
        const float* rows = static_cast<const float*>(k) + key * ld;
        F acc[kCount][kVectors] = {};
        for (int d = 0; d < dim; ++d) {
          F b[kVectors];
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) b[v] = load(q + d * kRows + v * kLanes);
#pragma GCC unroll 8
          for (int r = 0; r < kCount; ++r) {
            const F x = set1(rows[r * ld + d]);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(x, b[v], acc[r][v]);
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            row_max[v] = max(row_max[v], acc[r][v]);
            store(s + (key + r) * kRows + v * kLanes, acc[r][v]);
          }
        }
      });
  if (row_max_out != nullptr) {
    for (int v = 0; v < kVectors; ++v) store(row_max_out + v * kLanes, row_max[v]);
  }
}

static void accumulate_f32(const void* p, const void* v, int keys, int dim, const float* alpha,
                           float* o_t) {
  const float* weights = static_cast<const float*>(p);
  const int ld = leading_dim(dim);
  F scale[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    scale[i] = alpha == nullptr ? set1(1.0f) : load(alpha + i * kLanes);
  }
  for_register_tiles(
      dim, [&]<int kCount>(int d) __attribute__((always_inline)) {
        F acc[kCount][kVectors];
    // Rescaling O is how its accumulators start, never a pass of its own.
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) {
            acc[r][i] = load(o_t + (d + r) * kRows + i * kLanes) * scale[i];
          }
        }
        const float* column = static_cast<const float*>(v) + d;
        for (int j = 0; j < keys; ++j) {
          F b[kVectors];
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) b[i] = load(weights + j * kRows + i * kLanes);
#pragma GCC unroll 8
          for (int r = 0; r < kCount; ++r) {
            const F x = set1(column[j * ld + r]);
#pragma GCC unroll 4
            for (int i = 0; i < kVectors; ++i) acc[r][i] = fma(x, b[i], acc[r][i]);
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) store(o_t + (d + r) * kRows + i * kLanes, acc[r][i]);
        }
      });
}

// Dims in lanes here: dK and dV are kept in natural row order, and t^T is read as broadcasts. The
// sums stay in registers for all Q blocks: 32 rows are few for what loading and storing them costs.
template <int kCount, int kColumns>
ATTN_INLINE void accumulate_rows_tile(const WeightedRows* block, int blocks, int key, int column,
                                      int ld, float* g) {
  F acc[kCount][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) acc[r][c] = load(g + r * ld + c * kLanes);
  }
  for (const WeightedRows* end = block + blocks; block != end; ++block) {
    const float* t = block->t + key * kRows;
    const float* x = block->x + column;
    const int count = block->count;
    for (int i = 0; i < count; ++i) {
      F b[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) b[c] = load(x + i * ld + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        const F w = set1(t[r * kRows + i]);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) acc[r][c] = fma(w, b[c], acc[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) store(g + r * ld + c * kLanes, acc[r][c]);
  }
}

// Wider than the other products where 32 registers hold it: 6 x 4 sums, 4 loads and 1 broadcast.
inline constexpr int kRowsColumns = ATTN_VECTOR_BYTES == 64 ? 4 : kVectors;
inline constexpr int kRowsKeys = ATTN_VECTOR_BYTES == 64 ? 6 : kRegisterKeys;

static void accumulate_rows_f32(const WeightedRows* block, int blocks, int keys, int dim,
                                float* g) {
  const int ld = leading_dim(dim);
  for_register_tiles<kRowsKeys>(
      keys, [&]<int kCount>(int key) __attribute__((always_inline)) {
        float* rows = g + key * ld;
        int c = 0;
        for (; c + kRowsColumns * kLanes <= ld; c += kRowsColumns * kLanes) {
          accumulate_rows_tile<kCount, kRowsColumns>(block, blocks, key, c, ld, rows + c);
        }
        for (; c + kVectors * kLanes <= ld; c += kVectors * kLanes) {
          accumulate_rows_tile<kCount, kVectors>(block, blocks, key, c, ld, rows + c);
        }
        for (; c < ld; c += kLanes) {
          accumulate_rows_tile<kCount, 1>(block, blocks, key, c, ld, rows + c);
        }
      });
}

}  // namespace attn::cpu::ATTN_ISA
