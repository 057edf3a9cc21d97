// The work of a block of threads that takes one tile of queries: its sequence, rows and blocks of
// keys, and where its results go.
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "index.cuh"
#include "params.cuh"
#include "schedule/key_blocks.cuh"
#include "schedule/key_words.cuh"
#include "schedule/pieces.cuh"
#include "schedule/sequence.cuh"
#include "schedule/tiles.cuh"

namespace attn::device {

// Row r is query r / kGroup of query head r % kGroup of a K, V head's group.
//
// With lists of keys (C::kKeyList) all rows of a tile are of one query, whose list says which keys
// there are: in blocks of keys, and in `split`, a key is an entry of the list, which key_at() turns
// into the key that it names. Each query has whole tiles; rows past its group do not exist.
// Example: 6 query heads of a K, V head and tiles of 16 rows: rows 0 to 5 are query 0, rows 16 to
// 21 query 1, and query_of() of the others is past any length.
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
    end = divide_up<C::kBlockN>(C::kKeyList ? p.list_length : sequence.length_k);
    if constexpr (C::kSplits) {
      const int each = blocks_of_piece<C::kByLength>(p, least, end);
      whole = end <= each;
      begin = min(end, split * each);
      end = min(end, begin + each);
    }
  }

  static constexpr int kPageSize = C::kPageSize > 0 ? C::kPageSize : 1;
  ATTN_DEVICE long long page_of(const ForwardParams& p, int key) const {
    return to_index(__ldg(indices<C, kWidePageTable>(p.page_table) +
                          sequence.batch * p.page_table_stride + key / kPageSize));
  }

  static constexpr int kNoQuery = 0x7fffffff;
  // Of a query, with lists whole tiles.
  static constexpr int kRowsOfQuery =
      C::kKeyList ? divide_up<C::kBlockM>(C::kGroup) * C::kBlockM : C::kGroup;
  // Rows are not negative: as unsigned numbers they divide in fewer instructions.
  static ATTN_DEVICE int whole_query(int row) {
    return static_cast<int>(static_cast<unsigned>(row) / kRowsOfQuery);
  }
  static ATTN_DEVICE int in_query(int row) {
    return static_cast<int>(static_cast<unsigned>(row) % kRowsOfQuery);
  }
  ATTN_DEVICE int query_of(int row) const {
    if constexpr (C::kKeyList) return in_query(row) < C::kGroup ? whole_query(row) : kNoQuery;
    return whole_query(row);
  }
  ATTN_DEVICE int head_of(int row) const {
    return head * C::kGroup + (C::kKeyList ? min(in_query(row), C::kGroup - 1) : in_query(row));
  }
  ATTN_DEVICE int key_head(const ForwardParams& p) const {
    return C::kGroup > 1 ? head : head / (p.heads_q / p.heads_k);
  }
  ATTN_DEVICE QueryRange queries(int row, int rows) const {
    return {whole_query(row), min(whole_query(row + rows - 1), sequence.length_q - 1),
            head * C::kGroup, head * C::kGroup + C::kGroup - 1};
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
  // The key that an entry of the list names, or -1; without lists the same number.
  ATTN_DEVICE int key_at(const ForwardParams& p, int key) const {
    if constexpr (!C::kKeyList) return key;
    if (key >= p.list_length) return -1;
    // Not __ldg, which may come before wait_for_dependencies(): the kernel before may have written
    // the list.
    const int named = load_index<C, kWideKeyLists>(
        p.key_lists, query_row(p.key_list_strides, whole_query(row0), key_head(p)) + key);
    return static_cast<unsigned>(named) < static_cast<unsigned>(sequence.length_k) ? named : -1;
  }
  // Whether a key that key_at() gave is one.
  ATTN_DEVICE bool is_key(int key) const {
    return C::kKeyList ? key >= 0 : key < sequence.length_k;
  }
  // Whether there is such a row. The page of a key that no row sees may be any number.
  ATTN_DEVICE bool has_key(const ForwardParams& p, int key) const {
    if (!is_key(key)) return false;
    if constexpr (C::kPageSize == 0) return true;
    return static_cast<unsigned>(page_of(p, key)) < static_cast<unsigned>(p.num_pages);
  }

  // Score expression and mask of the key in place key + step (C::kKeyList: of the list).
  template <class Expressions>
  ATTN_DEVICE float score(const ForwardParams& p, const Expressions& e, float x, int query,
                          int of_head, int key, int step = 0) const {
    if constexpr (C::kKeyList) {
      return e.score(x, query, key_at(p, key + step), sequence.batch, of_head, sequence.length_q,
                     sequence.length_k);
    }
    return e.score(x, query, key, sequence.batch, of_head, sequence.length_q, sequence.length_k,
                   step);
  }
  template <class Expressions>
  ATTN_DEVICE bool sees(const ForwardParams& p, const Expressions& e, int query, int of_head,
                        int key) const {
    key = key_at(p, key);
    bool visible = is_key(key);
    if constexpr (Expressions::kHasMask) {
      visible = visible &
                e.mask(query, key, sequence.batch, of_head, sequence.length_q, sequence.length_k);
    }
    return visible;
  }

  // The row of a query among the partial results.
  ATTN_DEVICE long long partial_row(const ForwardParams& p, int query, int of_head) const {
    return ((static_cast<long long>(split) * p.batch + sequence.batch) * p.heads_q + of_head) *
               p.seqlen_q +
           query;
  }
};

}  // namespace attn::device
