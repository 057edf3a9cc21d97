// Where the rows of one sequence lie.
#pragma once

#include "device.cuh"
#include "index.cuh"
#include "params.cuh"

namespace attn::device {

struct Sequence {
  static constexpr bool kHasKeys = true;
  int batch = 0;
  int length_q = 0, length_k = 0;  // in use
  int rows_q = 0, rows_k = 0;      // that belong to it, in use or not
  int row_q = 0, row_k = 0;        // of a packed tensor: where it starts
};

// The same of Q alone, for kernels that read nothing of keys.
struct QueriesOfSequence {
  static constexpr bool kHasKeys = false;
  int batch = 0, length_q = 0, rows_q = 0, row_q = 0;
};

// Reads of C: kPackedQ, kUsedQ, kWide, and for keys kPackedK, kUsedK
template <class C, class Made = Sequence>
ATTN_DEVICE Made sequence_of(const ProblemParams& p, int batch) {
  Made s;
  s.batch = batch;
  s.rows_q = p.seqlen_q;
  if constexpr (Made::kHasKeys) s.rows_k = p.seqlen_k;
  if constexpr (C::kPackedQ) {
    s.row_q = load_index<C, kWideCuSeqlensQ>(p.cu_seqlens_q, batch);
    s.rows_q = load_index<C, kWideCuSeqlensQ>(p.cu_seqlens_q, batch + 1) - s.row_q;
  }
  if constexpr (Made::kHasKeys) {
    if constexpr (C::kPackedK) {
      s.row_k = load_index<C, kWideCuSeqlensK>(p.cu_seqlens_k, batch);
      s.rows_k = load_index<C, kWideCuSeqlensK>(p.cu_seqlens_k, batch + 1) - s.row_k;
    }
    s.length_k = s.rows_k;
  }
  s.length_q = s.rows_q;
  if constexpr (C::kUsedQ) s.length_q = load_index<C, kWideSequsedQ>(p.seqused_q, batch);
  if constexpr (Made::kHasKeys) {
    if constexpr (C::kUsedK) s.length_k = load_index<C, kWideSequsedK>(p.seqused_k, batch);
  }
  return s;
}

// The same in a forward kernel that has only sequences of C::kLeastQueries to C::kMostQueries
// queries (0: no bound), beside another kernel that has the rest: they are empty to it.
template <class C>
ATTN_DEVICE Sequence own_sequence_of(const ProblemParams& p, int batch) {
  Sequence s = sequence_of<C>(p, batch);
  if constexpr (C::kLeastQueries > 0) {
    if (s.rows_q < C::kLeastQueries) s.rows_q = s.length_q = 0;
  }
  if constexpr (C::kMostQueries > 0) {
    if (s.rows_q > C::kMostQueries) s.rows_q = s.length_q = 0;
  }
  return s;
}

}  // namespace attn::device
