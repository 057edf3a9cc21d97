// Classifies what blocks of queries see of tiles of keys, once for a run: the producer of the
// Hopper backward kernel, which has few registers, reads the words.
//
// Reads of C: kGradient (all), kBlockM (keys), kBlockN (queries), kPackedQ, kPackedK, kUsedQ,
// kUsedK, kWide
//   kMaskBatches, kMaskHeads   schedule/query_words.cuh
//   kScoreHides                a score may be -inf: all that is seen is mixed
//   kOrdered                   also gathers which tiles see a block (schedule/dq_turns.cuh, what
//                              that reads)
// Grid: a warp for each window of each tile, four a block of threads; launched as a dependent of
// kernels/backward_one_pass_rows.cuh, of which it reads nothing but those zeros.
#pragma once

#include "device.cuh"
#include "ptx/dependent.cuh"
#include "schedule/dq_turns.cuh"
#include "schedule/gradient_tile.cuh"
#include "schedule/query_words.cuh"

namespace attn::device {

inline constexpr int kBackwardWordsThreads = 128;

template <class C, class Expressions>
ATTN_DEVICE void backward_sm90_words(const BackwardParams& p, const Expressions& e) {
  launch_dependents();
  const long long word =
      static_cast<long long>(blockIdx.x) * (kBackwardWordsThreads / 32) + threadIdx.x / 32;
  const int window = static_cast<int>(word % p.query_windows);
  const long long tiles = word / p.query_windows;
  const int key_block = static_cast<int>(tiles % p.key_blocks);
  const int pair = static_cast<int>(tiles / p.key_blocks);
  const int heads = C::kMaskHeads ? p.heads_q : 1;
  const int head = pair % heads, batch = pair / heads;
  if (batch >= (C::kMaskBatches ? p.batch : 1)) return wait_for_dependencies();
  const GradientTile<C> tile{sequence_of<C>(p, batch), head / (p.heads_q / p.heads_k),
                             key_block * C::kBlockM};
  const int block = window * 32 + static_cast<int>(threadIdx.x % 32);
  const Coverage c = block < tile.blocks() ? tile.coverage(e, block, head) : Coverage::empty;
  const QueryWord seen = {__ballot_sync(~0u, C::kScoreHides || c != Coverage::full),
                          __ballot_sync(~0u, c == Coverage::empty)};
  if (threadIdx.x % 32 == 0) query_words_at<C>(p, batch, head, key_block)[window] = seen;
  if constexpr (C::kOrdered) {
    wait_for_dependencies();  // for zeros
    if (c != Coverage::empty) {
      atomicOr(DqTurns<C>::seen(p, batch, head, block) + key_block / 32, 1u << key_block % 32);
    }
    return;
  }
  // The main kernel waits for this one only, and needs those before it too.
  wait_for_dependencies();
}

}  // namespace attn::device
