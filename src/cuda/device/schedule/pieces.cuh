// How the keys of a sequence are cut into pieces where they are split, and in which order thread
// blocks take the pieces of sequences of different lengths.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "schedule/sequence.cuh"
#include "schedule/tiles.cuh"

namespace attn::device {

// Blocks of keys of each piece of a sequence that has `blocks` of them; the last piece may have
// fewer. kByLength: they follow from the sequence's own length, `least` at least. Else all
// sequences are cut as the longest is, into pieces of `least`.
template <bool kByLength>
ATTN_DEVICE int blocks_of_piece(const ForwardParams& p, int least, int blocks) {
  if constexpr (!kByLength) return least;
  return max(least, divide_up(blocks, p.num_splits));
}

// The fewest blocks of a piece with which a K, V head's pieces are no more than `most`: `blocks` of
// all sequences are cut, and a sequence adds one piece to blocks / piece at most. It is
// least_blocks where that makes more pieces, which share the machine evenly, or where sequences are
// so many that each is a piece. Example: 8 sequences of 330 blocks in all, for 132 multiprocessors,
// are cut into pieces of 4, where a plan for sequences of 65536 keys would have pieces of 32 and
// leave nine in ten multiprocessors without any.
ATTN_DEVICE int filling_piece(const ForwardParams& p, int blocks, int most) {
  constexpr int kFewest = 4;  // a shorter piece is not worth its merging
  const int pieces = most - p.batch;
  if (pieces <= 0) return p.least_blocks;
  return min(p.least_blocks, max(divide_up(blocks, pieces), kFewest));
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
  static_assert(kWarps <= kMagnitudes);

  // memory: kBytes of shared memory, which may be used for something else between two calls.
  ATTN_DEVICE PieceOrder(const ForwardParams& p, void* memory)
      : p_(p), counts_(static_cast<int*>(memory)), least_(p.least_blocks) {
    if (p_.batch > kMostSequences) {
      tell();
      return;
    }
    if (p_.piece_blocks != nullptr) {
      // One for each multiprocessor.
      const int most = static_cast<int>(gridDim.x) / (C::kBlocksAtOnce * heads());
      least_ = filling_piece(p_, blocks_of_all(), most);
      tell();
    }
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
    const int piece = index / heads();
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
    const OutputTile tile{0, index % heads(), found[0], found[1]};
    __syncthreads();
    return tile;
  }

  // Blocks of keys of a piece at least.
  ATTN_DEVICE int least() const { return least_; }

 private:
  ATTN_DEVICE int heads() const { return C::kGroup == 1 ? p_.heads_q : p_.heads_k; }
  // Tells the kernel that merges the pieces how long they are.
  ATTN_DEVICE void tell() const {
    if (p_.piece_blocks != nullptr && blockIdx.x == 0 && thread() == 0) *p_.piece_blocks = least_;
  }
  ATTN_DEVICE int blocks_of(const Sequence& s) const { return divide_up<C::kBlockN>(s.length_k); }
  // Of all sequences; each thread gets the sum. Ends with a barrier, after which counts_ is free.
  ATTN_DEVICE int blocks_of_all() const {
    int blocks = 0;
    for (int batch = thread(); batch < p_.batch; batch += kThreads) {
      const Sequence s = own_sequence_of<C>(p_, batch);
      if (!C::kPackedQ || s.rows_q > 0) blocks += blocks_of(s);
    }
    blocks = sum_up_to(blocks);
    if (lane() == 31) counts_[warp()] = blocks;
    __syncthreads();
    blocks = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) blocks += counts_[i];
    __syncthreads();
    return blocks;
  }
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
    const int blocks = blocks_of(s);
    const int each = blocks_of_piece<C::kByLength>(p_, least_, blocks);
    const int whole = max(0, (blocks - 1) / each);
    return {whole, each, blocks - whole * each};
  }

  const ForwardParams& p_;
  int* const counts_;
  int least_;
  int own_ = 0, before_ = 0;
};

}  // namespace attn::device
