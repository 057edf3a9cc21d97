// Where the words of a tile lie that kernels/classify.cuh works out before a forward kernel runs.
//
// [batch][head][m block][window of 32 blocks of keys][part of the tile's rows], with one batch
// where kMaskBatches is false and one head where kMaskHeads is: there the words of all are the
// same. A part are the kBlockM / kParts rows of a warp or warpgroup that goes through its blocks by
// itself. Splits have no words of their own.
#pragma once

#include "device.cuh"
#include "params.cuh"

namespace attn::device {

// Heads that have words; K, V heads when heads are packed.
template <class C>
ATTN_DEVICE int key_word_heads(const ForwardParams& p) {
  if constexpr (!C::kMaskHeads) return 1;
  return C::kGroup == 1 ? p.heads_q : p.heads_k;
}

// The words of a window of a tile: kParts of them.
template <class C>
ATTN_DEVICE KeyWord* key_words_at(const ForwardParams& p, int batch, int head, int m_block,
                                  int window) {
  const int pair =
      (C::kMaskBatches ? batch : 0) * key_word_heads<C>(p) + (C::kMaskHeads ? head : 0);
  const long long tile = static_cast<long long>(pair) * p.m_blocks + m_block;
  return p.key_words + (tile * p.key_windows + window) * C::kParts;
}

}  // namespace attn::device
