// Where the words of a tile of keys lie that kernels/backward_sm90_words.cuh works out before the
// Hopper backward kernel runs: what blocks of queries see of it.
//
// [batch][query head][block of keys][window of 32 blocks of queries], with one batch where
// kMaskBatches is false and one head where kMaskHeads is: there the words of all are the same.
#pragma once

#include "device.cuh"
#include "params.cuh"

namespace attn::device {

template <class C>
ATTN_DEVICE QueryWord* query_words_at(const BackwardParams& p, int batch, int head_q,
                                      int key_block) {
  const int pair = (C::kMaskBatches ? batch : 0) * (C::kMaskHeads ? p.heads_q : 1) +
                   (C::kMaskHeads ? head_q : 0);
  return p.query_words +
         (static_cast<long long>(pair) * p.key_blocks + key_block) * p.query_windows;
}

}  // namespace attn::device
