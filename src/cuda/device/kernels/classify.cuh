// Classifies the blocks of keys of all tiles, for masks that read buffers: once for a run and with
// all windows at once, rather than by every warp of the forward kernel as it goes.
//
// Reads of C: kBlockM, kBlockN, kGroup, kParts, kMaskBatches, kMaskHeads, kPackedQ, kPackedK,
// kUsedQ and kUsedK, as the forward kernel does; kSplits is false. Grid: a warp for each word of
// schedule/key_words.cuh, one block of keys a lane; 128 threads. The forward kernel may be launched
// as its dependent.
#pragma once

#include "params.cuh"
#include "ptx/dependent.cuh"
#include "schedule/key_words.cuh"
#include "schedule/query_tile.cuh"

namespace attn::device {

inline constexpr int kClassifyThreads = 128;

template <class C, class Expressions>
__device__ __forceinline__ void classify_key_blocks(const ForwardParams& p, const Expressions& e) {
  static_assert(!C::kSplits);
  launch_dependents();
  constexpr int kRows = C::kBlockM / C::kParts;
  long long index = static_cast<long long>(blockIdx.x) * (kClassifyThreads / 32) + threadIdx.x / 32;
  const int part = static_cast<int>(index % C::kParts);
  index /= C::kParts;
  const int window = static_cast<int>(index % p.key_windows);
  index /= p.key_windows;
  const int m_block = static_cast<int>(index % p.m_blocks);
  index /= p.m_blocks;
  if (index >= static_cast<long long>(key_word_batches<C>(p)) * key_word_heads<C>(p)) return;
  const int head = static_cast<int>(index % key_word_heads<C>(p));
  const int batch = static_cast<int>(index / key_word_heads<C>(p));

  const auto tile = QueryTile<C>::of(p, {m_block, head, batch, 0});
  const KeyRange range = tile.keys(tile.row0 + part * kRows, kRows);
  const int block = window * 32 + static_cast<int>(threadIdx.x % 32);
  const Coverage c = block < range.end ? block_coverage<C>(e, range, range.own, block * C::kBlockN)
                                       : Coverage::empty;
  const KeyWord word = {__ballot_sync(~0u, c != Coverage::full),
                        __ballot_sync(~0u, c == Coverage::empty)};
  if (threadIdx.x % 32 == 0) key_words_at<C>(p, batch, head, m_block, window)[part] = word;
}

}  // namespace attn::device
