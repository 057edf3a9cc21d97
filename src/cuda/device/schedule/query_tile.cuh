// The work of a block of threads that takes one tile of queries: its sequence, rows and blocks of
// keys, and where its results go.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "schedule/key_blocks.cuh"
#include "schedule/key_words.cuh"
#include "schedule/pieces.cuh"
#include "schedule/sequence.cuh"
#include "schedule/tiles.cuh"

namespace attn::device {

// Row r is query r / kGroup of query head r % kGroup of a K, V head's group.
template <class C>
struct QueryTile {
  Sequence sequence;
  int head;  // query head, or K, V head when heads are packed
  int split;
  int row0;           // first row
  int begin, end;     // blocks of keys
  bool whole = true;  // these are all blocks that the sequence has

  static ATTN_DEVICE QueryTile at(const ForwardParams& p, int index) {
    return of(p, tile_at<C>(p, index));
  }
  static ATTN_DEVICE QueryTile of(const ForwardParams& p, const OutputTile& tile) {
    return of(p, tile, p.least_blocks);
  }
  // least: blocks of a piece of the keys at least.
  static ATTN_DEVICE QueryTile of(const ForwardParams& p, const OutputTile& tile, int least) {
    QueryTile t{own_sequence_of<C>(p, tile.batch), tile.head_k, tile.split,
                tile.m_block * C::kBlockM,         0,           0};
    t.set_blocks(p, least);
    return t;
  }
  // Blocks of keys of its split.
  ATTN_DEVICE void set_blocks(const ForwardParams& p, int least) {
    begin = 0;
    end = (sequence.length_k + C::kBlockN - 1) / C::kBlockN;
    if constexpr (C::kSplits) {
      const int each = blocks_of_piece<C::kByLength>(p, least, end);
      whole = end <= each;
      begin = min(end, split * each);
      end = min(end, begin + each);
    }
  }

  static constexpr int kPageSize = C::kPageSize > 0 ? C::kPageSize : 1;
  ATTN_DEVICE long long page_of(const ForwardParams& p, int key) const {
    return __ldg(p.page_table + sequence.batch * p.page_table_stride + key / kPageSize);
  }

  // Rows are not negative: as unsigned numbers they divide in fewer instructions.
  ATTN_DEVICE int query_of(int row) const {
    return static_cast<int>(static_cast<unsigned>(row) / C::kGroup);
  }
  ATTN_DEVICE int head_of(int row) const {
    return head * C::kGroup + static_cast<int>(static_cast<unsigned>(row) % C::kGroup);
  }
  ATTN_DEVICE int key_head(const ForwardParams& p) const {
    return C::kGroup > 1 ? head : head / (p.heads_q / p.heads_k);
  }
  ATTN_DEVICE QueryRange queries(int row, int rows) const {
    return {query_of(row), min(query_of(row + rows - 1), sequence.length_q - 1), head * C::kGroup,
            head * C::kGroup + C::kGroup - 1};
  }
  // What KeyBlocks makes a list from; `row` and `rows` are those of the caller.
  ATTN_DEVICE KeyRange keys(int row, int rows) const {
    return {queries(row0, C::kBlockM),
            queries(row, rows),
            sequence.batch,
            sequence.length_q,
            sequence.length_k,
            begin,
            end};
  }

  // The words of a window, where the mask is classified ahead.
  ATTN_DEVICE const KeyWord* key_words(const ForwardParams& p, int window) const {
    return key_words_at<C>(p, sequence.batch, head, row0 / C::kBlockM, window);
  }

  // Elements from the start of a tensor to a row of it.
  ATTN_DEVICE long long query_row(const Strides& s, int query, int of_head) const {
    return (C::kPackedQ ? 0 : sequence.batch * s.batch) +
           (static_cast<long long>(sequence.row_q) + query) * s.row + of_head * s.head;
  }
  // Elements from the start of a tensor to the first key, or to the first row of the first page.
  ATTN_DEVICE long long first_key(const Strides& s, int of_head) const {
    const long long start = of_head * s.head;
    if constexpr (C::kPageSize > 0) return start;
    return start + (C::kPackedK ? sequence.row_k * s.row : sequence.batch * s.batch);
  }
  // Elements from there to a key below the length.
  ATTN_DEVICE long long key_row(const ForwardParams& p, const Strides& s, int key) const {
    if constexpr (C::kPageSize > 0) return page_of(p, key) * s.batch + key % kPageSize * s.row;
    return key * s.row;
  }
  // Whether there is such a row. The page of a key that no row sees may be any number.
  ATTN_DEVICE bool has_key(const ForwardParams& p, int key) const {
    if (key >= sequence.length_k) return false;
    if constexpr (C::kPageSize == 0) return true;
    return static_cast<unsigned>(page_of(p, key)) < static_cast<unsigned>(p.num_pages);
  }

  // The row of a query among the partial results.
  ATTN_DEVICE long long partial_row(const ForwardParams& p, int query, int of_head) const {
    return ((static_cast<long long>(split) * p.batch + sequence.batch) * p.heads_q + of_head) *
               p.seqlen_q +
           query;
  }
};

}  // namespace attn::device
