// Classifies the blocks of keys of all tiles, for masks that read buffers: once for a run and with
// all windows at once, rather than by every warp of the forward kernel as it goes.
//
// Reads of C:
//   kBlockM, kBlockN, kGroup, kPageSize, kKeyList, kPackedQ, kPackedK, kUsedQ, kUsedK, kWide,
//   kLeastQueries, kMostQueries                                    as the forward kernel
//   kParts, kMaskBatches, kMaskHeads                               schedule/key_words.cuh
//   kSplits                                                        false: words are of all splits
// Grid: a block of threads for each window of each tile, with a warp for each part of the tile and
// a lane for each block of keys. The forward kernel may be launched as its dependent.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/dependent.cuh"
#include "schedule/key_words.cuh"
#include "schedule/query_tile.cuh"

namespace attn::device {

template <class C, class Expressions>
ATTN_DEVICE void classify_key_blocks(const ForwardParams& p, const Expressions& e) {
  static_assert(!C::kSplits);
  launch_dependents();
  const auto windows = static_cast<unsigned>(p.key_windows);
  const auto m_blocks = static_cast<unsigned>(p.m_blocks);
  const auto heads = static_cast<unsigned>(key_word_heads<C>(p));
  const int window = static_cast<int>(blockIdx.x % windows);
  const unsigned tiles = blockIdx.x / windows, pair = tiles / m_blocks;
  const int m_block = static_cast<int>(tiles % m_blocks);
  const int head = static_cast<int>(pair % heads), batch = static_cast<int>(pair / heads);
  const int part = static_cast<int>(threadIdx.x / 32);

  constexpr int kRows = C::kBlockM / C::kParts;
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
