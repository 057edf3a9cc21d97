// The work of a block of threads of a backward pass over lists of keys: query heads of one K, V
// head's group, all of one query, whose list says which keys they see.
//
// Reads of C: kBlockN (query heads of a block), kPackedQ, kPackedK, kUsedQ, kUsedK, kWide
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "index.cuh"
#include "params.cuh"
#include "schedule/sequence.cuh"

namespace attn::device {

// The key that an entry of a list names, or -1. Without an entry -1 too.
template <class C>
ATTN_DEVICE int listed_key(const BackwardParams& p, const Sequence& sequence, int query, int head_k,
                           int entry) {
  if (entry >= p.list_length) return -1;
  const Strides& s = p.key_list_strides;
  const long long row = (C::kPackedQ ? 0 : sequence.batch * s.batch) +
                        (static_cast<long long>(sequence.row_q) + query) * s.row + head_k * s.head;
  const int named = load_index<C, kWideKeyLists>(p.key_lists, row + entry);
  return static_cast<unsigned>(named) < static_cast<unsigned>(sequence.length_k) ? named : -1;
}

template <class C>
struct ListedQuery {
  Sequence sequence;
  int query, head_k;
  int head_q, heads;  // the first query head, and how many there are

  // All queries of a K, V head come one after the other, so that its K, V and sums stay in L2.
  static ATTN_DEVICE ListedQuery at(const BackwardParams& p, int index) {
    const int group = p.heads_q / p.heads_k, tiles = divide_up<C::kBlockN>(group);
    const int tile = index % tiles, row = index / tiles;
    const int pair = row / p.seqlen_q, head_k = pair % p.heads_k;
    const int first = tile * C::kBlockN;
    return {sequence_of<C>(p, pair / p.heads_k), row % p.seqlen_q, head_k, head_k * group + first,
            min(C::kBlockN, group - first)};
  }

  ATTN_DEVICE bool exists() const { return query < sequence.rows_q; }
  ATTN_DEVICE bool is_used() const { return query < sequence.length_q; }
  ATTN_DEVICE int key_at(const BackwardParams& p, int entry) const {
    return listed_key<C>(p, sequence, query, head_k, entry);
  }

  // Elements from the start of a tensor to the row of a query head, and to the row of a key.
  ATTN_DEVICE long long query_row(const Strides& s, int of_head) const {
    return (C::kPackedQ ? 0 : sequence.batch * s.batch) +
           (static_cast<long long>(sequence.row_q) + query) * s.row + of_head * s.head;
  }
  ATTN_DEVICE long long key_row(const Strides& s, int key) const {
    return (C::kPackedK ? 0 : sequence.batch * s.batch) +
           (static_cast<long long>(sequence.row_k) + key) * s.row + head_k * s.head;
  }
  ATTN_DEVICE const RowTerms& terms(const BackwardParams& p, int of_head) const {
    return p.row_terms[(static_cast<long long>(sequence.batch) * p.heads_q + of_head) * p.seqlen_q +
                       query];
  }
};

}  // namespace attn::device
