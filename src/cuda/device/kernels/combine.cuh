// Merges the partial results of splits: LSE = log sum exp(LSE_s), O = sum exp(LSE_s - LSE) O_s
// (Flash-Decoding). LSE_s are sums of two numbers (PartialLse). Several threads share a column of
// O, each with some of the splits, so that the loads of a row are on their way together; their sums
// are added in a fixed order.
//
// Reads of C (kernels/combine_shape.hpp):
//   Element        Output of the forward kernel: Float32, BFloat16 or Float16
//   kHeadDimV      1 to 512
//   kVectorO       the address and strides of O are multiples of 4 elements
//   kAcross        threads side by side, each with kWide columns; a power of two up to 128
//   kSplitLanes    threads that share a column; kAcross * kSplitLanes is a multiple of 32
//   kThreads       of a block: a multiple of kAcross * kSplitLanes
//   kBlockKeys     0, or the keys of a block where a sequence's own length says how many splits it
//                  has; others may not have been written
//   kFillsGrid     the forward kernel has chosen how the keys are cut (ForwardParams::piece_blocks)
//   kWholeIsStored rows of sequences that one such split holds are in O and LSE already
//   kOtherParts    how many of OtherParts there are, whose splits follow those of ForwardParams
//   kLeastQueries, kMostQueries, kPackedQ, kUsedQ, kPackedK, kUsedK, kWide
// Grid: rows, batch * heads_q * seqlen_q, over kThreads / (kAcross * kSplitLanes), with
// CombineShape::shared_bytes of dynamic shared memory. May be launched as a dependent of the
// forward kernel.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "index.cuh"
#include "params.cuh"
#include "ptx/dependent.cuh"
#include "schedule/pieces.cuh"
#include "schedule/sequence.cuh"
#include "softmax/online.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

template <class C>
struct Combine {
  using Element = typename C::Element;
  using Storage = typename Scalar<Element>::Storage;
  // Columns that a thread has side by side, and how often its row goes over them.
  static constexpr int kWide = C::kHeadDimV % 4 == 0 ? 4 : 1;
  static constexpr int kSets = divide_up<C::kAcross * kWide>(C::kHeadDimV);
  static constexpr int kRowThreads = C::kAcross * C::kSplitLanes;
  // Threads whose sums are together in registers of a warp or of warps that share no column; the
  // other kParts of a row come through shared memory.
  static constexpr int kPartThreads = C::kAcross < 32 ? 32 : C::kAcross;
  static constexpr int kParts = kRowThreads / kPartThreads;
  static_assert(kRowThreads % 32 == 0 && C::kThreads % kRowThreads == 0);

  struct alignas(4 * kWide) Partial {
    float x[kWide];
  };
  struct alignas(sizeof(Storage) * (C::kVectorO ? kWide : 1)) Packet {
    Storage x[kWide];
  };

  const ForwardParams& p;
  const OtherParts& others;
  long long row;   // of partial results of one split
  long long rows;  // of one split

  static ATTN_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }
  // This thread among those of its row.
  static ATTN_DEVICE int own() { return static_cast<int>(threadIdx.x % kRowThreads); }
  static ATTN_DEVICE int split_lane() { return own() / C::kAcross; }
  static ATTN_DEVICE int column(int set) { return kWide * (C::kAcross * set + own() % C::kAcross); }
  static ATTN_DEVICE bool inside(int set) {
    return C::kHeadDimV % (C::kAcross * kWide) == 0 || column(set) < C::kHeadDimV;
  }
  static ATTN_DEVICE float warp_max(float x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
  }
  static ATTN_DEVICE float warp_sum(float x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
  }

  // Where the row goes, and its parts: 0 where the row is not in use. exists: it is to be written.
  // own: of `splits`, those of ForwardParams; of_all: the query among those of all sequences.
  struct Place {
    int batch, head;
    long long at;
    bool exists;
    int splits, own, query;
    long long of_all;
  };
  ATTN_DEVICE int splits_of(int batch) const {
    if constexpr (C::kBlockKeys > 0) {
      const Sequence s = own_sequence_of<C>(p, batch);
      const int blocks = divide_up<C::kBlockKeys>(s.length_k);
      const int least = C::kFillsGrid ? *p.piece_blocks : p.least_blocks;
      const int each = blocks_of_piece<true>(p, least, blocks);
      return max(1, divide_up(blocks, each));
    } else {
      return p.num_splits;
    }
  }
  ATTN_DEVICE Place place() const {
    if (row >= rows) return {};
    const long long pair = row / p.seqlen_q;
    const int query = static_cast<int>(row - pair * p.seqlen_q);
    const int batch = static_cast<int>(pair / p.heads_q);
    const int head = static_cast<int>(pair - static_cast<long long>(batch) * p.heads_q);
    long long at = query;
    int length = p.seqlen_q;
    if constexpr (C::kPackedQ) {
      const Sequence s = own_sequence_of<C>(p, batch);
      length = s.rows_q;
      at += s.row_q;
      if (query >= length) return {};
    }
    if constexpr (C::kUsedQ) length = load_index<C, kWideSequsedQ>(p.seqused_q, batch);
    const int own = splits_of(batch);
    if (C::kWholeIsStored && own == 1) return {};
    int splits = own;
#pragma unroll
    for (int i = 0; i < C::kOtherParts; ++i) splits += others.part[i].splits;
    const long long of_all = C::kPackedQ ? at : static_cast<long long>(batch) * p.seqlen_q + at;
    return {batch, head, at, true, query < length ? splits : 0, own, query, of_all};
  }

  // Where the row has its partial results of a split.
  struct Source {
    const float* o;
    const PartialLse* lse;
  };
  ATTN_DEVICE Source source(const Place& to, int split) const {
    if constexpr (C::kOtherParts > 0) {
      int other = split - to.own;
      if (other >= 0) {
#pragma unroll
        for (int i = 0; i < C::kOtherParts; ++i) {
          const OtherPart& part = others.part[i];
          if (other < part.splits || i + 1 == C::kOtherParts) {
            const long long its_row =
                part.as_one
                    ? static_cast<long long>(to.head) * part.seqlen_q + to.of_all
                    : (static_cast<long long>(to.batch) * p.heads_q + to.head) * part.seqlen_q +
                          to.query;
            const long long at = other * part.rows + its_row;
            return {part.o + at * C::kHeadDimV, part.lse + at};
          }
          other -= part.splits;
        }
      }
    }
    const long long at = split * rows + row;
    return {p.partial_o + at * C::kHeadDimV, p.partial_lse + at};
  }

  ATTN_DEVICE PartialLse partial_lse(const Place& to, int split, int splits) const {
    return split < splits ? *source(to, split).lse : PartialLse{minus_infinity(), 0};
  }

  ATTN_DEVICE void run() const {
    const Place to = place();
    const int splits = to.splits;
    float top = minus_infinity();
    // The sum of LSE over the splits that attend to something, and their number.
    float only = 0, parts = 0;
    for (int split = lane(); split < splits; split += 32) {
      const float lse = partial_lse(to, split, splits).lse;
      top = fmaxf(top, lse);
      if (lse == minus_infinity()) continue;
      only += lse;
      parts += 1;
    }
    top = warp_max(top);
    only = warp_sum(only);
    // One part alone is the result, also where its LSE is infinite or NaN, as a sink without keys.
    const bool alone = warp_sum(parts) == 1;
    const float from = top == minus_infinity() ? 0 : top;
    float sum = 0;
    float o[kSets][kWide];
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) o[set][i] = 0;
    }
    for (int first = 0; first < splits; first += 32) {
      const PartialLse part = partial_lse(to, first + lane(), splits);
      const float share =
          alone ? (part.lse == minus_infinity() ? 0 : 1) : expf(part.lse - from + part.rest);
      sum += share;
      add(o, to, share, first, splits);
    }
    sum = warp_sum(sum);
    add_lanes(o);
    if (!to.exists || split_lane() != 0) return;
    store(o, sum == 0 ? 0 : 1 / sum,
          element<Element>(p.o, (C::kPackedQ ? 0 : to.batch * p.o_strides.batch) +
                                    to.at * p.o_strides.row + to.head * p.o_strides.head));
    if (p.lse != nullptr && own() == 0) {
      p.lse[(C::kPackedQ ? 0 : to.batch * p.lse_strides.batch) + to.at * p.lse_strides.row +
            to.head * p.lse_strides.head] = alone      ? only
                                            : sum == 0 ? minus_infinity()
                                                       : top + logf(sum);
    }
  }

  // O += share O_s of those of the 32 splits from `first` on that this thread has; the lanes of the
  // warp hold their shares.
  ATTN_DEVICE void add(float (&o)[kSets][kWide], const Place& to, float share, int first,
                       int splits) const {
#pragma unroll 4
    for (int i = 0; i < 32; i += C::kSplitLanes) {
      if (first + i >= splits) break;  // the same for all threads of the row
      const int split = i + split_lane();
      const float weight = __shfl_sync(~0u, share, split);
      const bool there = first + split < splits;
      const float* const from = source(to, there ? first + split : first).o;
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        if (!inside(set)) continue;
        const Partial x = *reinterpret_cast<const Partial*>(from + column(set));
#pragma unroll
        for (int k = 0; k < kWide; ++k) {
          o[set][k] = fmaf(weight, there ? x.x[k] : 0.f, o[set][k]);
        }
      }
    }
  }

  // Adds up what the threads of a column have; the first of them gets the sum.
  static ATTN_DEVICE void add_lanes(float (&o)[kSets][kWide]) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int k = 0; k < kWide; ++k) {
#pragma unroll
        for (int i = C::kAcross; i < 32; i *= 2) o[set][k] += __shfl_xor_sync(~0u, o[set][k], i);
      }
    }
    if constexpr (kParts > 1) {
      extern __shared__ __align__(16) char memory[];
      Partial* const parts = reinterpret_cast<Partial*>(memory);
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
#pragma unroll
        for (int k = 0; k < kWide; ++k) parts[set * C::kThreads + threadIdx.x].x[k] = o[set][k];
      }
      __syncthreads();
      if (own() >= C::kAcross) return;
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
#pragma unroll
        for (int part = 1; part < kParts; ++part) {
#pragma unroll
          for (int k = 0; k < kWide; ++k) {
            o[set][k] += parts[set * C::kThreads + threadIdx.x + part * kPartThreads].x[k];
          }
        }
      }
    }
  }

  static ATTN_DEVICE void store(const float (&o)[kSets][kWide], float factor, Storage* to) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      if (!inside(set)) continue;
      Packet packet;
#pragma unroll
      for (int i = 0; i < kWide; ++i) packet.x[i] = Scalar<Element>::to(o[set][i] * factor);
      *reinterpret_cast<Packet*>(to + column(set)) = packet;
    }
  }
};

template <class C>
ATTN_DEVICE void combine(const ForwardParams& p, const OtherParts& others) {
  wait_for_dependencies();
  // The next call's blocks of threads find their places from here on. Any earlier they would find
  // them beside those of this call that still read, some multiprocessors would get two of them and
  // others none: 4 sequences of 4096 keys in 128 blocks took 25.0 us on an H200 instead of 21.1.
  launch_dependents();
  const long long rows = static_cast<long long>(p.batch) * p.heads_q * p.seqlen_q;
  constexpr int kRows = C::kThreads / Combine<C>::kRowThreads;
  const long long row =
      static_cast<long long>(blockIdx.x) * kRows + threadIdx.x / Combine<C>::kRowThreads;
  Combine<C>{p, others, row, rows}.run();
}

}  // namespace attn::device
