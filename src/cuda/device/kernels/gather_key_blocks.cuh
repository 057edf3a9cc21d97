// Makes the lists of blocks of 64 keys that each tile of queries sees
// (schedule/gathered_blocks.cuh), for masks that read buffers: once for a run, before the forward
// kernel.
//
// Reads of C:
//   kBlockN                     64
//   what else kernels/classify.cuh reads
// Grid: a block of kGatherThreads threads for each tile, which classify as many blocks of keys at a
// time, with kGatherSharedBytes of dynamic shared memory. The forward kernel may be launched as its
// dependent.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/dependent.cuh"
#include "schedule/gathered_blocks.cuh"
#include "schedule/query_tile.cuh"

namespace attn::device {

inline constexpr int kGatherThreads = 256;
inline constexpr int kGatherSharedBytes = 2 * kGatherThreads / 32 * 4;

template <class C, class Expressions>
ATTN_DEVICE void gather_key_blocks(const ForwardParams& p, const Expressions& e) {
  static_assert(!C::kSplits && C::kBlockN == kGatheredKeys);
  static_assert(C::kParts <= GatheredBlock::kMostParts);
  constexpr int kWarps = kGatherThreads / 32;
  extern __shared__ __align__(16) char memory[];
  // [2][kWarps]: blocks that the warps have found, in two rounds.
  int* const counts = reinterpret_cast<int*>(memory);
  launch_dependents();
  const auto m_blocks = static_cast<unsigned>(p.m_blocks);
  const auto heads = static_cast<unsigned>(key_word_heads<C>(p));
  const unsigned pair = blockIdx.x / m_blocks;
  const int m_block = static_cast<int>(blockIdx.x % m_blocks);
  const int head = static_cast<int>(pair % heads), batch = static_cast<int>(pair / heads);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);

  const auto tile = QueryTile<C>::of(p, {m_block, head, batch, 0});
  constexpr int kRows = C::kBlockM / C::kParts;
  KeyWord* const list = gathered_blocks_at<C>(p, batch, head, m_block);
  auto* const blocks = reinterpret_cast<int*>(list + 1);
  const KeyRange all = tile.keys(tile.row0, C::kBlockM);
  constexpr unsigned kAll = (1u << C::kParts) - 1;
  int found = 0;
#pragma unroll 1
  for (int first = 0, round = 0; first < tile.end; first += kGatherThreads, round ^= 1) {
    const int block = first + static_cast<int>(threadIdx.x);
    const auto coverage = [&](const QueryRange& rows) {
      return block < all.end ? block_coverage<C>(e, all, rows, block * kGatheredKeys)
                             : Coverage::empty;
    };
    // What all rows see wholly or not at all, each part of them does.
    const Coverage of_all = coverage(all.shared);
    const bool asks_parts = __any_sync(~0u, of_all == Coverage::mixed);
    unsigned mixed = 0, empty = 0;
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
      const QueryRange own = tile.queries(tile.row0 + part * kRows, kRows);
      Coverage c = own.first > own.last ? Coverage::empty : of_all;
      if (asks_parts) c = coverage(own);
      mixed |= (c != Coverage::full ? 1u : 0u) << part;
      empty |= (c == Coverage::empty ? 1u : 0u) << part;
    }
    const unsigned seen = __ballot_sync(~0u, empty != kAll);
    if (lane == 0) counts[round * kWarps + warp] = __popc(seen);
    __syncthreads();
    int at = found;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const int of_warp = counts[round * kWarps + i];
      if (i < warp) at += of_warp;
      found += of_warp;
    }
    if (empty != kAll) {
      blocks[at + __popc(seen & ((1u << lane) - 1))] = GatheredBlock::of(block, mixed, empty).bits;
    }
  }
  if (threadIdx.x == 0) {
    if (found % 2 != 0) blocks[found] = GatheredBlock::none().bits;
    *list = {static_cast<unsigned>((found + 1) / 2), 0};
  }
}

}  // namespace attn::device
