// V of 8-bit floats as their products read it: a row for each column of V, with the keys along it
// in an accumulator's order (schedule/transposed_values.cuh). Tensor cores transpose elements of 16
// bits on their way, not those of 8. Keys past a length, up to a whole tile, become 0, so that they
// may meet P = 0 whatever lies there.
//
// The kernel behind it may begin early, and waits where it first loads V.
//
// Reads of C:
//   kHeadDimV            a multiple of 16; kRowsOfOnes rows more are written
//   kTransposedUnit      of keys, a multiple of 128: what lengths are rounded up to where sequences
//                        are packed
//   kBlockN              keys of a tile. Zeros are written up to a whole tile; where all keys are
//                        used, up to whole 128 alone, as the copy engine gives zeros behind the
//                        tensor
//   OperandV             Float8E4M3 or Float8E5M2
//   kPageSize, kPackedK, kUsedK, kWide (and kPackedQ, kUsedQ, which are false)
// Grid: blocks of kTransposeThreads threads, one for 128 keys of a sequence and head, with dynamic
// shared memory for these keys and 16 bytes more after every 16.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "index.cuh"
#include "params.cuh"
#include "ptx/dependent.cuh"
#include "ptx/halves.cuh"
#include "schedule/sequence.cuh"
#include "schedule/transposed_values.cuh"
#include "tile/accumulator.cuh"
#include "tile/scalar.cuh"

namespace attn::device {

template <class C>
struct TransposeValues {
  static constexpr int kKeys = 128, kVectors = C::kHeadDimV / 16, kWords = C::kHeadDimV / 4;
  // Words of shared memory where a key begins. Threads read one word of keys 16 apart at once,
  // which the 4 words more after 16 keys put into different banks.
  static ATTN_DEVICE int word_of(int key) { return key * kWords + key / 16 * 4; }

  const TransposeValuesParams& p;
  Words4* shared;

  // The address of a key of V; null where its page does not exist.
  ATTN_DEVICE const char* row(const Sequence& s, int head, int key) const {
    long long batch = C::kPackedK ? 0 : s.batch, at = s.row_k + key;
    if constexpr (C::kPageSize > 0) {
      batch = load_index<C, kWidePageTable>(p.page_table,
                                            s.batch * p.page_table_stride + key / C::kPageSize);
      if (batch < 0 || batch >= p.num_pages) return nullptr;
      at = key % C::kPageSize;
    }
    return static_cast<const char*>(p.v) + batch * p.v_strides.batch + at * p.v_strides.row +
           head * p.v_strides.head;
  }
  // A vector of V; zeros past the length.
  ATTN_DEVICE Words4 vector_at(const Sequence& s, int head, int key, int vector) const {
    if (key >= s.length_k) return {};
    const char* const from = row(s, head, key);
    return from == nullptr ? Words4{} : reinterpret_cast<const Words4*>(from)[vector];
  }
  // A thread has kAhead loads on their way before it stores the first.
  ATTN_DEVICE void load(const Sequence& s, int head, int key0) const {
    constexpr int kAhead = 4, kAll = kKeys * kVectors;
#pragma unroll
    for (int first = 0; first < kAll; first += kAhead * kTransposeThreads) {
      Words4 words[kAhead] = {};
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = first + j * kTransposeThreads + static_cast<int>(threadIdx.x);
        if (i < kAll) words[j] = vector_at(s, head, key0 + i / kVectors, i % kVectors);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int i = first + j * kTransposeThreads + static_cast<int>(threadIdx.x);
        if (i < kAll) shared[word_of(i / kVectors) / 4 + i % kVectors] = words[j];
      }
    }
  }
  // Four words with an element of each of four columns become those of a column each.
  static ATTN_DEVICE void transpose(const unsigned (&w)[4], unsigned (&columns)[4]) {
    const unsigned a = take_bytes(w[0], w[1], 0x5140), b = take_bytes(w[2], w[3], 0x5140);
    const unsigned c = take_bytes(w[0], w[1], 0x7362), d = take_bytes(w[2], w[3], 0x7362);
    columns[0] = take_bytes(a, b, 0x5410);
    columns[1] = take_bytes(a, b, 0x7632);
    columns[2] = take_bytes(c, d, 0x5410);
    columns[3] = take_bytes(c, d, 0x7632);
  }
  // A thread takes 16 keys of 4 columns.
  ATTN_DEVICE void store(unsigned char* to) const {
    const auto* const words = reinterpret_cast<const unsigned*>(shared);
    constexpr int kGroups = kKeys / 16;
    for (int i = static_cast<int>(threadIdx.x); i < kGroups * kWords; i += kTransposeThreads) {
      const int group = i % kGroups, word = i / kGroups;
      unsigned columns[4][4];
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) {
        unsigned keys[4], out[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          keys[j] = words[word_of(16 * group + transposed_key(4 * quad + j)) + word];
        }
        transpose(keys, out);
#pragma unroll
        for (int j = 0; j < 4; ++j) columns[j][quad] = out[j];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto& w = columns[j];
        *reinterpret_cast<Words4*>(to + (4 * word + j) * p.columns + 16 * group) = {w[0], w[1],
                                                                                    w[2], w[3]};
      }
    }
  }

  ATTN_DEVICE void store_ones(unsigned char* to) const {
    constexpr int kVectorsOfKeys = kKeys / 16;
    constexpr unsigned kOnes = Scalar<typename C::OperandV>::kOnes;
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kRowsOfOnes * kVectorsOfKeys) return;
    const int row = C::kHeadDimV + i / kVectorsOfKeys;
    const unsigned w = row == C::kHeadDimV ? kOnes : 0;
    *reinterpret_cast<Words4*>(to + row * p.columns + i % kVectorsOfKeys * 16) = {w, w, w, w};
  }

  ATTN_DEVICE void run() const {
    constexpr bool kAllUsed = !C::kPackedK && !C::kUsedK;
    constexpr int kTile = kAllUsed ? kKeys : C::kBlockN;
    const int tiles = divide_up<C::kTransposedUnit>(p.seqlen_k) * (C::kTransposedUnit / kKeys);
    const int index = static_cast<int>(blockIdx.x);
    const int tile = index % tiles, head = index / tiles % p.heads_k;
    const Sequence s = sequence_of<C>(p, index / tiles / p.heads_k);
    const int key0 = tile * kKeys;
    if (key0 >= divide_up<kTile>(s.length_k) * kTile) return;
    load(s, head, key0);
    __syncthreads();
    const int column =
        key0 + (C::kPackedK ? transposed_column<C::kTransposedUnit>(s.row_k, s.batch) : 0);
    const long long first = (static_cast<long long>(C::kPackedK ? 0 : s.batch) * p.heads_k + head) *
                            (C::kHeadDimV + kRowsOfOnes);
    store(p.to + first * p.columns + column);
    store_ones(p.to + first * p.columns + column);
  }
};

template <class C>
ATTN_DEVICE void transpose_values(const TransposeValuesParams& p) {
  extern __shared__ __align__(16) char memory[];
  launch_dependents();
  TransposeValues<C>{p, reinterpret_cast<Words4*>(memory)}.run();
}

}  // namespace attn::device
