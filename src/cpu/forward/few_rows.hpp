// A handful of query rows against a long cache: the loop of attend() with dims in lanes and K, V
// read where they lie.
#pragma once

#include "cpu/forward/partial.hpp"
#include "cpu/forward/query_group.hpp"
#include "cpu/tasks.hpp"

namespace attn::cpu {

// Whether all rows that share a K, V head fit the decoding verbs.
inline bool has_few_rows(const Problem& p) {
  return p.seqlen_q * (p.heads_q / p.heads_k) <= kMaxDecodeRows;
}

// Whether a table of bf16 operands has verbs for few rows of the problem.
inline bool decodes_bf16(const Problem& p, const TileOps& ops) {
  return ops.decode.scores != nullptr && p.head_dim % kStagedKeys == 0 &&
         p.head_dim_v % kStagedKeys == 0;
}

// Rows that a partial result keeps of a plan's few rows, or of its Q blocks.
inline int partial_rows(const Problem& p, int block_q) {
  return has_few_rows(p) ? decode_row_stride(static_cast<int>(p.seqlen_q * (p.heads_q / p.heads_k)))
                         : block_q;
}

// K, V heads whose rows lie side by side are read together: a task that took every eighth 128-byte
// row would fetch each memory page eight times. Their blocks of K and V have this many bytes at
// most: 64 keys of 16 heads of 128 floats, so that a key is a page and more of each. What a head
// keeps meanwhile (Q, O, P) then stays in L2.
inline constexpr std::int64_t kHeadGroupBytes = std::int64_t{1} << 20;

// The most heads that a group may have.
std::int64_t most_heads_per_group(const Problem& problem);
// Heads of a group; 1 where the rows of a head are contiguous.
std::int64_t heads_per_group(const Attention& a);

// One head's rows.
struct HeadState {
  QueryBlock block;
  float* q = nullptr;      // [kMaxDecodeRows][leading_dim(dim)], scaled; bf16: DecodeBf16Verbs
  float* o = nullptr;      // [kMaxDecodeRows][leading_dim(dim_v)], unnormalised
  float* s = nullptr;      // [kBlockK][decode_row_stride(count)]; P afterwards
  float* alpha = nullptr;  // [kMaxRows]
  // Of bf16 operands: pairs of kStagedKeys keys of V, and which of a block are set apart.
  std::uint32_t* v = nullptr;  // [kStagedKeys / 2][dim_v]
  std::uint64_t v_apart = 0;
  bool hides_keys = false;  // P of the block may hold zeros
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
// m, l and O of a head as merge_partials() takes them, of partial_rows() rows.
void save_few_rows(const Attention& a, const HeadState& head, const Partial& partial);

}  // namespace attn::cpu
