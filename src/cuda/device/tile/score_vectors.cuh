// Scores of an accumulator (tile/accumulator.cuh) whose elements of buffers are loaded for 32 keys
// of a row at a time (expr/vector.cuh).
#pragma once

#include "device.cuh"

namespace attn::device {

// What a thread has loaded for the scores of its two rows and kKeys keys: 32 keys in use, and
// kAhead times as many to come, so that loads go on beside the keys before. kTransposed: as
// load_vectors. Where the expressions load no vectors it is empty, and nothing is called.
template <class Expressions, int kKeys, bool kTransposed, int kAhead,
          bool kAny = (Expressions::kVectorWords > 0)>
struct ScoreVectors {};

template <class Expressions, int kKeys, bool kTransposed, int kAhead>
struct ScoreVectors<Expressions, kKeys, kTransposed, kAhead, true> {
  using Vectors = typename Expressions::Vectors;
  Vectors rows[kAhead + 1][2];

  // Called before the first score of each 32 keys, by all threads of a warp. chunk: which they are,
  // a constant. load(vectors, i, first): calls load_vectors<kTransposed> for row i of the two and
  // the 32 keys from `first` on, counted from the first of all.
  template <class Load>
  ATTN_DEVICE void take(const Expressions& e, int chunk, Load load) {
    if (chunk == 0) {
#pragma unroll
      for (int first = 0; first < kAhead; ++first) load_chunk(first, load);
    }
    load_chunk(chunk + kAhead, load);
    if constexpr (kTransposed) {
#pragma unroll
      for (int i = 0; i < 2; ++i) e.transpose_vectors(rows[chunk % (kAhead + 1)][i]);
    }
  }
  // The score of register r of the accumulator, a constant, of the 32 keys that were taken last.
  // point: as of score(), with the first key of the thread.
  template <class... Point>
  ATTN_DEVICE float score(const Expressions& e, int r, float dot, Point... point) const {
    return e.score_of_vectors(rows[r / 16 % (kAhead + 1)][r / 2 % 2], r % 16 / 4 * 2 + r % 2, dot,
                              point..., r / 4 * 8 + r % 2);
  }

 private:
  template <class Load>
  ATTN_DEVICE void load_chunk(int chunk, Load load) {
    if (32 * chunk >= kKeys) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) load(rows[chunk % (kAhead + 1)][i], i, 32 * chunk);
  }
};

}  // namespace attn::device
