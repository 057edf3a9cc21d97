// How the keys of a sequence are cut into pieces where they are split, and in which order thread
// blocks take the pieces of sequences of different lengths.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "schedule/sequence.cuh"
#include "schedule/tiles.cuh"

namespace attn::device {

// Blocks of keys of each piece of a sequence that has `blocks` of them; the last piece may have
// fewer. kByLength: they follow from the sequence's own length alone. Else all sequences are cut as
// the longest is, into pieces of least_blocks.
template <bool kByLength>
ATTN_DEVICE int blocks_of_piece(const ForwardParams& p, int blocks) {
  if constexpr (!kByLength) return p.least_blocks;
  return max(p.least_blocks, (blocks + p.num_splits - 1) / p.num_splits);
}

// The pieces of one sequence: `whole` of them with `each` blocks, and a last one with `rest`, which
// is there also where the sequence has no keys, but not where it has no rows (rest is -1).
struct Pieces {
  int whole, each, rest;
  // 0 for no blocks, else 1 + the base-2 logarithm of their number, rounded down; 32 for -1.
  static ATTN_DEVICE int magnitude(int blocks) { return 32 - __clz(blocks); }
  ATTN_DEVICE int count(int of_magnitude) const {
    return (magnitude(each) == of_magnitude ? whole : 0) +
           (magnitude(rest) == of_magnitude ? 1 : 0);
  }
};

// Finds the pieces of all sequences in the order of work: those of 2^n blocks and more before
// shorter ones, so that what is left at the end is short, and no multiprocessor works long when
// others are done (longest processing time first). All K, V heads of a piece follow each other.
// Of more than kMostSequences the order is that of tile_at(): a search through so many would take
// longer than it saves. For all kThreads threads of a block together.
template <class C, int kThreads>
class PieceOrder {
 public:
  static constexpr int kWarps = kThreads / 32, kMagnitudes = 32;
  static constexpr int kBytes = (kMagnitudes + kWarps + 2) * 4;
  static constexpr int kMostSequences = 1024;

  // memory: kBytes of shared memory, which may be used for something else between two calls.
  ATTN_DEVICE PieceOrder(const ForwardParams& p, void* memory)
      : p_(p), counts_(static_cast<int*>(memory)) {
    if (p_.batch > kMostSequences) return;
    if (thread() < kMagnitudes) counts_[thread()] = 0;
    __syncthreads();
    for (int batch = thread(); batch < p_.batch; batch += kThreads) {
      const Pieces pieces = of(batch);
      if (pieces.whole > 0) atomicAdd(counts_ + Pieces::magnitude(pieces.each), pieces.whole);
      if (pieces.rest >= 0) atomicAdd(counts_ + Pieces::magnitude(pieces.rest), 1);
    }
    __syncthreads();
    // Lane i has the pieces of magnitude 31 - i, and knows how many come before.
    own_ = counts_[kMagnitudes - 1 - lane()];
    before_ = sum_up_to(own_) - own_;
    __syncthreads();
  }

  // Piece number index / heads of head index % heads; split is -1 where there are no more. index:
  // that of thread 0 counts. Ends with a barrier.
  ATTN_DEVICE OutputTile find(int index) const {
    int* const sums = counts_ + kMagnitudes;
    int* const found = sums + kWarps;
    if (thread() == 0) found[0] = index;
    __syncthreads();
    index = found[0];
    if (p_.batch > kMostSequences) {
      __syncthreads();
      return index < p_.num_tiles ? tile_at<C>(p_, index) : OutputTile{0, 0, 0, -1};
    }
    const int heads = C::kGroup == 1 ? p_.heads_q : p_.heads_k;
    const int piece = index / heads;
    const unsigned here = __ballot_sync(~0u, piece >= before_ && piece < before_ + own_);
    if (here == 0) return {0, 0, 0, -1};
    const int of_magnitude = __ffs(here) - 1;
    int left = piece - __shfl_sync(~0u, before_, of_magnitude);
    const int magnitude = kMagnitudes - 1 - of_magnitude;
#pragma unroll 1
    for (int first = 0;; first += kThreads) {
      const int batch = first + thread();
      Pieces pieces{};
      int count = 0;
      if (batch < p_.batch) {
        pieces = of(batch);
        count = pieces.count(magnitude);
      }
      int up_to = sum_up_to(count);
      if (lane() == 31) sums[warp()] = up_to;
      __syncthreads();
      int all = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        if (i < warp()) up_to += sums[i];
        all += sums[i];
      }
      const int others = up_to - count;
      if (left >= others && left < up_to) {
        found[0] = batch;
        // Of one magnitude are all pieces of a sequence, or those but the last, or the last.
        found[1] = Pieces::magnitude(pieces.each) == magnitude ? left - others : pieces.whole;
      }
      __syncthreads();
      if (left < all) break;
      left -= all;
    }
    const OutputTile tile{0, index % heads, found[0], found[1]};
    __syncthreads();
    return tile;
  }

 private:
  static ATTN_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
  static ATTN_DEVICE int lane() { return thread() % 32; }
  static ATTN_DEVICE int warp() { return thread() / 32; }
  // Over the lanes up to this one.
  static ATTN_DEVICE int sum_up_to(int x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const int other = __shfl_up_sync(~0u, x, i);
      if (lane() >= i) x += other;
    }
    return x;
  }
  ATTN_DEVICE Pieces of(int batch) const {
    const Sequence s = own_sequence_of<C>(p_, batch);
    if (C::kPackedQ && s.rows_q == 0) return {0, 1, -1};
    const int blocks = (s.length_k + C::kBlockN - 1) / C::kBlockN;
    const int each = blocks_of_piece<C::kByLength>(p_, blocks);
    const int whole = max(0, (blocks - 1) / each);
    return {whole, each, blocks - whole * each};
  }

  const ForwardParams& p_;
  int* const counts_;
  int own_ = 0, before_ = 0;
};

}  // namespace attn::device
