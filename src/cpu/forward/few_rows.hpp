// A handful of query rows against a long cache: the loop of attend() with dims in lanes and K, V
// read where they lie.
#pragma once

#include "cpu/forward/query_group.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {

// Whether all rows that share a K, V head fit the decoding verbs.
inline bool has_few_rows(const Problem& p) {
  return p.seqlen_q * (p.heads_q / p.heads_k) <= kMaxDecodeRows;
}

// K, V heads whose rows lie side by side are read together: a task that took every eighth 128-byte
// row would fetch each memory page eight times. Their blocks of K and V, this many bytes at most,
// stay in L2 until all heads have used them.
inline constexpr std::int64_t kHeadGroupBytes = std::int64_t{256} << 10;

// The most heads that a group may have.
std::int64_t most_heads_per_group(const Problem& problem);
// Heads of a group; 1 where the rows of a head are contiguous.
std::int64_t heads_per_group(const Attention& a);

// One head's rows.
struct HeadState {
  QueryBlock block;
  float* q = nullptr;  // [kMaxDecodeRows][leading_dim(dim)], scaled
  float* o = nullptr;  // [kMaxDecodeRows][leading_dim(dim_v)], unnormalised
};

struct FewRowsScratch {
  int dim = 0, dim_v = 0;
  std::int64_t heads = 1;
  TileScratch tile;
  HeadState* head = nullptr;

  void carve(Carver& c);
};
FewRowsScratch few_rows_scratch(const Attention& a);

// Keys [range.begin, range.end) for every row of K, V heads [head_first, head_first + heads);
// leaves m, l and O of each in s.head.
void attend_few_rows(const Attention& a, const core::Sequence& sequence, int head_first, int heads,
                     const KeyRange& range, FewRowsScratch& s);
// O^T of a head as merge_partials() takes it.
void transpose_few_rows(const Attention& a, const HeadState& head, float* o_t);

}  // namespace attn::cpu
