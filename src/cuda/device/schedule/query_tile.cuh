// The work of a block of threads that takes one tile of queries: its sequence, rows and blocks of
// keys, and where its results go.
#pragma once

#include "params.cuh"
#include "schedule/key_blocks.cuh"
#include "schedule/key_words.cuh"
#include "schedule/sequence.cuh"
#include "schedule/tiles.cuh"

namespace attn::device {

// Row r is query r / kGroup of query head r % kGroup of a K, V head's group.
template <class C>
struct QueryTile {
  Sequence sequence;
  int head;  // query head, or K, V head when heads are packed
  int split;
  int row0;        // first row
  int begin, end;  // blocks of keys

  static __device__ __forceinline__ QueryTile at(const ForwardParams& p, int index) {
    return of(p, tile_at<C>(p, index));
  }
  static __device__ __forceinline__ QueryTile of(const ForwardParams& p, const OutputTile& tile) {
    QueryTile t{sequence_of<C>(p, tile.batch), tile.head_k, tile.split,
                tile.m_block * C::kBlockM,     0,           0};
    t.end = (t.sequence.length_k + C::kBlockN - 1) / C::kBlockN;
    if constexpr (C::kSplits) {
      t.begin = min(t.end, t.split * p.blocks_per_split);
      t.end = min(t.end, t.begin + p.blocks_per_split);
    }
    return t;
  }

  static constexpr int kPageSize = C::kPageSize > 0 ? C::kPageSize : 1;
  __device__ __forceinline__ long long page_of(const ForwardParams& p, int key) const {
    return __ldg(p.page_table + sequence.batch * p.page_table_stride + key / kPageSize);
  }

  // Rows are not negative: as unsigned numbers they divide in fewer instructions.
  __device__ __forceinline__ int query_of(int row) const {
    return static_cast<int>(static_cast<unsigned>(row) / C::kGroup);
  }
  __device__ __forceinline__ int head_of(int row) const {
    return head * C::kGroup + static_cast<int>(static_cast<unsigned>(row) % C::kGroup);
  }
  __device__ __forceinline__ int key_head(const ForwardParams& p) const {
    return C::kGroup > 1 ? head : head / (p.heads_q / p.heads_k);
  }
  __device__ __forceinline__ QueryRange queries(int row, int rows) const {
    return {query_of(row), min(query_of(row + rows - 1), sequence.length_q - 1), head * C::kGroup,
            head * C::kGroup + C::kGroup - 1};
  }
  // What KeyBlocks makes a list from; `row` and `rows` are those of the caller.
  __device__ __forceinline__ KeyRange keys(int row, int rows) const {
    return {queries(row0, C::kBlockM),
            queries(row, rows),
            sequence.batch,
            sequence.length_q,
            sequence.length_k,
            begin,
            end};
  }

  // The words of a window, where the mask is classified ahead.
  __device__ __forceinline__ const KeyWord* key_words(const ForwardParams& p, int window) const {
    return key_words_at<C>(p, sequence.batch, head, row0 / C::kBlockM, window);
  }

  // Elements from the start of a tensor to a row of it.
  __device__ __forceinline__ long long query_row(const Strides& s, int query, int of_head) const {
    return (C::kPackedQ ? 0 : sequence.batch * s.batch) +
           (static_cast<long long>(sequence.row_q) + query) * s.row + of_head * s.head;
  }
  // Elements from the start of a tensor to the first key, or to the first row of the first page.
  __device__ __forceinline__ long long first_key(const Strides& s, int of_head) const {
    const long long start = of_head * s.head;
    if constexpr (C::kPageSize > 0) return start;
    return start + (C::kPackedK ? sequence.row_k * s.row : sequence.batch * s.batch);
  }
  // Elements from there to a key below the length.
  __device__ __forceinline__ long long key_row(const ForwardParams& p, const Strides& s,
                                               int key) const {
    if constexpr (C::kPageSize > 0) return page_of(p, key) * s.batch + key % kPageSize * s.row;
    return key * s.row;
  }
  // Whether there is such a row. The page of a key that no row sees may be any number.
  __device__ __forceinline__ bool has_key(const ForwardParams& p, int key) const {
    if (key >= sequence.length_k) return false;
    if constexpr (C::kPageSize == 0) return true;
    return static_cast<unsigned>(page_of(p, key)) < static_cast<unsigned>(p.num_pages);
  }

  // The row of a query among the partial results.
  __device__ __forceinline__ long long partial_row(const ForwardParams& p, int query,
                                                   int of_head) const {
    return ((static_cast<long long>(split) * p.batch + sequence.batch) * p.heads_q + of_head) *
               p.seqlen_q +
           query;
  }
};

}  // namespace attn::device
