// The three matrix products of attention. Each is a register tile of keys x vectors accumulators:
// one broadcast feeds as many multiply-adds as there are vectors, one vector load as many as there
// are keys. With kByElement a load of a row brings the broadcasts of four steps, or of four rows of
// accumulators. An Operand says what a 32-bit word of a tile holds: F32Operand below, or
// Bf16Operand (bf16.hpp).
#pragma once

#include "cpu/kernels/vec.hpp"
#include "cpu/tile_ops.hpp"

namespace attn::cpu::ATTN_ISA {

// A word is one element of the summed dimension.
struct F32Operand {
  typedef float Word;
  typedef F Words;                 // as many as a vector has lanes
  static constexpr int kStep = 1;  // elements of the summed dimension in a word
  ATTN_INLINE F multiply_add(F x, F y, F sum) { return fma(x, y, sum); }
#if defined(__aarch64__)
  template <int kLane>
  ATTN_INLINE F multiply_add_element(F x, F y, F sum) {
    return fma_element<kLane>(x, y, sum);
  }
#endif
};

// body.template operator()<kCount>(first) over [0, n) in steps of kStep; the rest in one
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

// The verbs over several Q blocks from a product over one.
template <void (*kScores)(const ScoreTile&, const void*, int, int)>
static void scores_each(const ScoreTile* tile, int tiles, const void* k, int keys, int dim) {
  for (int i = 0; i < tiles; ++i) kScores(tile[i], k, keys, dim);
}
template <void (*kAccumulate)(const OutputTile&, const void*, int, int)>
static void accumulate_each(const OutputTile* tile, int tiles, const void* v, int keys, int dim) {
  for (int i = 0; i < tiles; ++i) kAccumulate(tile[i], v, keys, dim);
}

// Two Q blocks share a register tile where 32 registers hold it: 6 x 4 sums, 4 vectors and 1
// broadcast. Its 4 + 6 loads feed 24 FMAs, the 2 + 8 of 8 x 2 feed 16. From L1 both run at 98 % of
// the FMA peak of a core that is left alone, but 6 x 4 keeps 88 % and 8 x 2 75 % of it beside what
// looks like another thread of the core (docs/cpu.md), and K and V are read from L2 half as often.
inline constexpr int kRegisterBlocks = ATTN_VECTOR_BYTES == 64 ? 2 : 1;
static_assert(kRegisterBlocks <= kMaxRegisterBlocks);
template <int kTiles>
inline constexpr int kProductKeys = kTiles == 1 ? kRegisterKeys : 6;

// Steps of the summed dimension in an iteration: with fewer than 32 registers GCC spills from 2 on.
inline constexpr int kStepsAtOnce = kManyRegisters ? 2 : 1;

template <class Operand, int kTiles>
ATTN_INLINE void scores_tiles(const ScoreTile* tile, const typename Operand::Word* k, int keys,
                              int dim) {
  constexpr int kWidth = kTiles * kVectors;
  const int ld = leading_dim(dim) / Operand::kStep;
  const int steps = (dim + Operand::kStep - 1) / Operand::kStep;
  const typename Operand::Word* q[kTiles];
  float* s[kTiles];
  for (int i = 0; i < kTiles; ++i) {
    q[i] = static_cast<const typename Operand::Word*>(tile[i].q_t);
    s[i] = tile[i].s;
  }
  F row_max[kWidth];
  for (F& m : row_max) m = set1(-__builtin_inff());
  for_register_tiles<kProductKeys<kTiles>>(
      keys, [&]<int kCount>(int key) __attribute__((always_inline)) {
        const typename Operand::Word* rows = k + key * ld;
        F acc[kCount][kWidth] = {};
        int d = 0;
        if constexpr (kByElement) {
          for (; d + kLanes <= steps; d += kLanes) {
            typename Operand::Words x[kCount];
#pragma GCC unroll 8
            for (int r = 0; r < kCount; ++r) x[r] = load(rows + r * ld + d);
            for_each_number<kLanes>([&]<int kLane>() __attribute__((always_inline)) {
#pragma GCC unroll 4
              for (int v = 0; v < kWidth; ++v) {
                const typename Operand::Words b =
                    load(q[v / kVectors] + (d + kLane) * kRows + v % kVectors * kLanes);
#pragma GCC unroll 8
                for (int r = 0; r < kCount; ++r) {
                  acc[r][v] = Operand::template multiply_add_element<kLane>(x[r], b, acc[r][v]);
                }
              }
            });
          }
        }
#pragma GCC unroll kStepsAtOnce
        for (; d < steps; ++d) {
          typename Operand::Words b[kWidth];
#pragma GCC unroll 4
          for (int v = 0; v < kWidth; ++v) {
            b[v] = load(q[v / kVectors] + d * kRows + v % kVectors * kLanes);
          }
#pragma GCC unroll 8
          for (int r = 0; r < kCount; ++r) {
            const typename Operand::Words x = set1(rows[r * ld + d]);
#pragma GCC unroll 4
            for (int v = 0; v < kWidth; ++v) {
              acc[r][v] = Operand::multiply_add(x, b[v], acc[r][v]);
            }
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int v = 0; v < kWidth; ++v) {
            row_max[v] = max_score(row_max[v], acc[r][v]);
            store(s[v / kVectors] + (key + r) * kRows + v % kVectors * kLanes, acc[r][v]);
          }
        }
      });
  for (int v = 0; v < kWidth; ++v) {
    float* out = tile[v / kVectors].row_max;
    if (out != nullptr) store(out + v % kVectors * kLanes, row_max[v]);
  }
}

template <class Operand>
static void scores(const ScoreTile* tile, int tiles, const void* k, int keys, int dim) {
  const auto* rows = static_cast<const typename Operand::Word*>(k);
  int i = 0;
  for (; i + kRegisterBlocks <= tiles; i += kRegisterBlocks) {
    scores_tiles<Operand, kRegisterBlocks>(tile + i, rows, keys, dim);
  }
  for (; i < tiles; ++i) scores_tiles<Operand, 1>(tile + i, rows, keys, dim);
}

template <class Operand, int kTiles>
ATTN_INLINE void accumulate_tiles(const OutputTile* tile, const typename Operand::Word* v, int keys,
                                  int dim) {
  constexpr int kWidth = kTiles * kVectors;
  const int ld = leading_dim(dim);
  const int steps = (keys + Operand::kStep - 1) / Operand::kStep;
  const typename Operand::Word* weights[kTiles];
  float* o_t[kTiles];
  F scale[kWidth];
  for (int i = 0; i < kTiles; ++i) {
    weights[i] = static_cast<const typename Operand::Word*>(tile[i].p);
    o_t[i] = tile[i].o_t;
  }
  for (int i = 0; i < kWidth; ++i) {
    const float* alpha = tile[i / kVectors].alpha;
    scale[i] = alpha == nullptr ? set1(1.0f) : load(alpha + i % kVectors * kLanes);
  }
  for_register_tiles<kProductKeys<kTiles>>(
      dim, [&]<int kCount>(int d) __attribute__((always_inline)) {
        F acc[kCount][kWidth] = {};
        const typename Operand::Word* column = v + d;
#pragma GCC unroll kStepsAtOnce
        for (int j = 0; j < steps; ++j) {
          typename Operand::Words b[kWidth];
#pragma GCC unroll 4
          for (int i = 0; i < kWidth; ++i) {
            b[i] = load(weights[i / kVectors] + j * kRows + i % kVectors * kLanes);
          }
          if constexpr (kByElement) {
            typename Operand::Words x[(kCount + kLanes - 1) / kLanes];  // within ld elements
#pragma GCC unroll 2
            for (int at = 0; at < kCount; at += kLanes) x[at / kLanes] = load(column + j * ld + at);
            for_each_number<kCount>([&]<int kRow>() __attribute__((always_inline)) {
#pragma GCC unroll 4
              for (int i = 0; i < kWidth; ++i) {
                acc[kRow][i] = Operand::template multiply_add_element<kRow % kLanes>(
                    x[kRow / kLanes], b[i], acc[kRow][i]);
              }
            });
          } else {
#pragma GCC unroll 8
            for (int r = 0; r < kCount; ++r) {
              const typename Operand::Words x = set1(column[j * ld + r]);
#pragma GCC unroll 4
              for (int i = 0; i < kWidth; ++i) {
                acc[r][i] = Operand::multiply_add(x, b[i], acc[r][i]);
              }
            }
          }
        }
    // O is rescaled where it is added to, never in a pass of its own, and not where the sums
    // start: they need not wait for it.
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
          for (int i = 0; i < kWidth; ++i) {
            float* o = o_t[i / kVectors] + (d + r) * kRows + i % kVectors * kLanes;
            store(o, fma(load(o), scale[i], acc[r][i]));
          }
        }
      });
}

template <class Operand>
static void accumulate(const OutputTile* tile, int tiles, const void* v, int keys, int dim) {
  const auto* rows = static_cast<const typename Operand::Word*>(v);
  int i = 0;
  for (; i + kRegisterBlocks <= tiles; i += kRegisterBlocks) {
    accumulate_tiles<Operand, kRegisterBlocks>(tile + i, rows, keys, dim);
  }
  for (; i < tiles; ++i) accumulate_tiles<Operand, 1>(tile + i, rows, keys, dim);
}

// Dims in lanes here: dK and dV are kept in natural row order, and t^T is read as broadcasts. The
// sums stay in registers for all Q blocks: 32 rows are few for what loading and storing them costs.
template <class Operand, int kCount, int kColumns>
ATTN_INLINE void accumulate_rows_tile(const WeightedRows* block, int blocks, int key, int column,
                                      int ld, float* g) {
  F acc[kCount][kColumns] = {};
  for (const WeightedRows* end = block + blocks; block != end; ++block) {
    constexpr int kWords = kRows / Operand::kStep;  // of a row of t
    const auto* t = static_cast<const typename Operand::Word*>(block->t) + key * kWords;
    const auto* x = static_cast<const typename Operand::Word*>(block->x) + column;
    const int steps = (block->count + Operand::kStep - 1) / Operand::kStep;
    int i = 0;
    if constexpr (kByElement) {
      for (; i + kLanes <= steps; i += kLanes) {
        typename Operand::Words w[kCount];
#pragma GCC unroll 8
        for (int r = 0; r < kCount; ++r) w[r] = load(t + r * kWords + i);
        for_each_number<kLanes>([&]<int kLane>() __attribute__((always_inline)) {
#pragma GCC unroll 4
          for (int c = 0; c < kColumns; ++c) {
            const typename Operand::Words b = load(x + (i + kLane) * ld + c * kLanes);
#pragma GCC unroll 8
            for (int r = 0; r < kCount; ++r) {
              acc[r][c] = Operand::template multiply_add_element<kLane>(w[r], b, acc[r][c]);
            }
          }
        });
      }
    }
    for (; i < steps; ++i) {
      typename Operand::Words b[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) b[c] = load(x + i * ld + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        const typename Operand::Words w = set1(t[r * kWords + i]);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          acc[r][c] = Operand::multiply_add(w, b[c], acc[r][c]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      float* sum = g + r * ld + c * kLanes;
      store(sum, load(sum) + acc[r][c]);
    }
  }
}

// 6 x 4 sums where 32 registers hold them, as for two Q blocks above.
inline constexpr int kRowsColumns = ATTN_VECTOR_BYTES == 64 ? 4 : kVectors;
inline constexpr int kRowsKeys = ATTN_VECTOR_BYTES == 64 ? 6 : kRegisterKeys;

// kColumns vectors of every row: x of four Q blocks is 32 KB of a 48 KB L1 for all keys.
template <class Operand, int kColumns>
ATTN_INLINE void accumulate_columns(const WeightedRows* block, int blocks, int keys, int column,
                                    int ld, float* g) {
  for_register_tiles<kRowsKeys>(
      keys, [&]<int kCount>(int key) __attribute__((always_inline)) {
        accumulate_rows_tile<Operand, kCount, kColumns>(block, blocks, key, column, ld,
                                                        g + key * ld + column);
      });
}

template <class Operand>
static void accumulate_rows(const WeightedRows* block, int blocks, int keys, int dim, float* g) {
  const int ld = leading_dim(dim);
  int c = 0;
  for (; c + kRowsColumns * kLanes <= ld; c += kRowsColumns * kLanes) {
    accumulate_columns<Operand, kRowsColumns>(block, blocks, keys, c, ld, g);
  }
  for (; c + kVectors * kLanes <= ld; c += kVectors * kLanes) {
    accumulate_columns<Operand, kVectors>(block, blocks, keys, c, ld, g);
  }
  for (; c < ld; c += kLanes) accumulate_columns<Operand, 1>(block, blocks, keys, c, ld, g);
}

}  // namespace attn::cpu::ATTN_ISA
