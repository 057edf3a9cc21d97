// The work of a block of threads that takes one tile of a gradient: kBlockM of its rows, and what
// they meet. Rows of dQ are queries, and their columns keys; rows of dK and dV are keys, and their
// columns the queries of every head of the group.
//
// Reads of C: kGradient, kBlockM, kBlockN (columns that a tile meets at a time), kPackedQ,
// kPackedK, kUsedQ, kUsedK, kWide
#pragma once

#include "device.cuh"
#include "divide_up.cuh"
#include "params.cuh"
#include "schedule/sequence.cuh"
#include "tile/coverage.cuh"

namespace attn::device {

// Rows of one sequence and head of a tensor: elements from its start to the first one, elements
// between two, and how many are in use.
struct TensorRows {
  const void* data;
  long long start, stride;
  int count;
};

template <class C>
struct GradientTile {
  static constexpr bool kOfKeys = C::kGradient == Gradient::dk || C::kGradient == Gradient::dv ||
                                  C::kGradient == Gradient::dk_dv || C::kGradient == Gradient::all;

  Sequence sequence;
  int head;   // of K where rows are keys, else of Q
  int first;  // row of the tile; with Gradient::buffers it may be below 0

  // Blocks of kEach rows. Up to 2^31 - 1 rows and kEach more are an unsigned number.
  template <int kEach>
  static ATTN_DEVICE int blocks_of(int rows) {
    return static_cast<int>(divide_up<kEach>(static_cast<unsigned>(rows)));
  }

  // Tiles that see most under a causal mask come first: the first keys, the last queries.
  static ATTN_DEVICE GradientTile at(const BackwardParams& p, int index) {
    const int rows = kOfKeys ? p.seqlen_k : p.seqlen_q, heads = kOfKeys ? p.heads_k : p.heads_q;
    const int tiles = blocks_of<C::kBlockM>(rows), pairs = heads * p.batch;
    const int pair = index % pairs, tile = index / pairs;
    return {sequence_of<C>(p, pair / heads), pair % heads,
            (kOfKeys ? tile : tiles - 1 - tile) * C::kBlockM};
  }

  ATTN_DEVICE int rows_present() const { return kOfKeys ? sequence.rows_k : sequence.rows_q; }
  ATTN_DEVICE int rows_used() const { return kOfKeys ? sequence.length_k : sequence.length_q; }
  // How many blocks of columns there are, of each head.
  ATTN_DEVICE int blocks() const {
    const int columns = kOfKeys ? sequence.length_q : sequence.length_k;
    return blocks_of<C::kBlockN>(columns);
  }
  // Heads of Q whose queries or keys the tile meets: the first, and how many.
  ATTN_DEVICE int heads(const BackwardParams& p) const {
    return kOfKeys ? p.heads_q / p.heads_k : 1;
  }
  ATTN_DEVICE int head_q(const BackwardParams& p) const { return head * heads(p); }
  ATTN_DEVICE int head_k(const BackwardParams& p) const {
    return kOfKeys ? head : head / (p.heads_q / p.heads_k);
  }

  ATTN_DEVICE TensorRows of_queries(const void* data, const Strides& s, int of_head) const {
    return {data,
            (C::kPackedQ ? sequence.row_q * s.row : sequence.batch * s.batch) + of_head * s.head,
            s.row, sequence.length_q};
  }
  ATTN_DEVICE TensorRows of_keys(const void* data, const Strides& s, int of_head) const {
    return {data,
            (C::kPackedK ? sequence.row_k * s.row : sequence.batch * s.batch) + of_head * s.head,
            s.row, sequence.length_k};
  }
  ATTN_DEVICE const RowTerms* terms(const BackwardParams& p, int of_head) const {
    return p.row_terms +
           (static_cast<long long>(sequence.batch) * p.heads_q + of_head) * p.seqlen_q;
  }

  // What the tile and a block of columns have in common, seen by a head of Q.
  template <class Expressions>
  ATTN_DEVICE Coverage coverage(const Expressions& e, int block, int of_head) const {
    const int row_end = first + C::kBlockM - 1;
    const int column = block * C::kBlockN, column_end = column + C::kBlockN - 1;
    const int query_begin = kOfKeys ? column : first, query_end = kOfKeys ? column_end : row_end;
    const int query = C::kGradient == Gradient::buffers ? max(query_begin, 0) : query_begin;
    const int key = kOfKeys ? first : column, key_end = kOfKeys ? row_end : column_end;
    const int query_last = min(query_end, sequence.length_q - 1);
    const int key_last = min(key_end, sequence.length_k - 1);
    if (query > query_last || key > key_last) return Coverage::empty;
    Coverage c = Coverage::full;
    if constexpr (Expressions::kHasMask) {
      c = e.classify(query, query_last, key, key_last, sequence.batch, of_head, of_head,
                     sequence.length_q, sequence.length_k);
    }
    const bool inside = query == query_begin && query_last == query_end && key_last == key_end;
    return c == Coverage::full && !inside ? Coverage::mixed : c;
  }
};

}  // namespace attn::device
