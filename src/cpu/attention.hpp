// What all tiles of one call share: the problem, its compiled expressions, the constants of its
// softmax.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "attn/run.hpp"
#include "core/cached_rows.hpp"
#include "core/ceil_div.hpp"
#include "core/expr/program.hpp"
#include "core/problem/places.hpp"
#include "core/problem/rows.hpp"
#include "cpu/expressions.hpp"
#include "cpu/tile_ops.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;
// Running maxima start here and not at -inf, so that 2^(-inf - m) is 0 and never NaN.
inline constexpr float kMaximumStart = -3.402823466e+38f;

// A Q block: up to TileOps::rows rows. Row r of a sequence and K, V head is query r / group of
// query head head_k * group + r % group, so that the heads of a GQA group share each pass over K
// and V.
struct QueryBlock {
  int count = 0;
  expr::Tile tile;  // ranges of query and head; keys are set where it is classified
  alignas(64) std::int32_t query[kMaxRows];  // lanes past count repeat the last row
  alignas(64) std::int32_t head[kMaxRows];
  alignas(64) std::uint32_t batch_head[kMaxRows];
  alignas(64) float m[kMaxRows];  // in the units of t.s
  alignas(64) float l[kMaxRows];
  void* q_t = nullptr;   // [head_dim][rows]
  float* o_t = nullptr;  // [head_dim_v][rows]
};

// Scratch of one tile.
struct TileScratch {
  float* s = nullptr;             // [kBlockK][rows]; P afterwards
  void* p = nullptr;              // P in the operand type; s itself for f32
  float* row_max = nullptr;       // [rows]
  float* alpha = nullptr;         // [rows]
  std::uint32_t* keep = nullptr;  // [kBlockK]
  float* expression = nullptr;    // of the expression evaluator
  std::size_t expression_floats = 0;
  DType operand = DType::f32;

  template <class Carver>
  void carve(Carver& c) {
    c.take(s, static_cast<std::size_t>(kBlockK) * kMaxRows);
    if (operand == DType::bf16) {
      std::uint32_t* pairs = nullptr;
      c.take(pairs, static_cast<std::size_t>(kBlockK) / 2 * kMaxRows);
      p = pairs;
    } else {
      p = s;
    }
    c.take(row_max, kMaxRows);
    c.take(alpha, kMaxRows);
    c.take(keep, kBlockK);
    c.take(expression, expression_floats);
  }
};

// A Q block against some K block.
struct QueryTile {
  QueryBlock* q = nullptr;
  expr::Coverage coverage = expr::Coverage::full;
  TileScratch* t = nullptr;
};

struct ListedKeys;  // listed_keys.hpp

// A packed K, V block.
struct KeyBlock {
  int key0 = 0;
  int keys = 0;
  void* k = nullptr;
  void* v = nullptr;
  std::uint64_t k_apart = 0;           // bit j: k holds zeros in row j, see nonfinite.hpp
  const ListedKeys* listed = nullptr;  // by list: which keys they are, in the place of key0
};

class Attention {
 public:
  // problem is complete and validated; the references must outlive this. Immutable after
  // construction.
  Attention(const Problem& p, const Inputs& in, const TileOps& table, const Expressions& compiled,
            Workspace& workspace);
  // Of some of the batch's sequences, which live in the workspace.
  Attention(const Problem& p, const Inputs& in, const TileOps& table, const Expressions& compiled,
            Workspace& workspace, std::pmr::vector<core::Sequence> its_sequences);

  const Problem& problem;
  const Inputs& inputs;
  const TileOps& ops;
  const int group;  // query heads of a K, V head
  const int dim, dim_v;
  const CacheType type_q, type_k, type_v;  // as they are stored; never as_q
  const float scale;                       // softmax_scale
  const Expressions& programs;
  std::pmr::vector<core::Sequence> sequences;  // all of the batch, or some in its order
  // Of a part of a larger problem: where its rows stand in that, for dropout. Else null.
  const core::Places* places = nullptr;
  // Of a part of the keys that is to be merged: f64, in the shape and strides of LSE, what rounding
  // took from that. Example: 300 keys of scores -1e30 have LSE -1e30 and here log 300, so that they
  // weigh three times 100 such keys. Else not given.
  Tensor lse_rest{};

  // Rows of Q of a sequence and K, V head.
  std::int64_t rows(const core::Sequence& sequence) const {
    return std::int64_t{sequence.length_q} * group;
  }

  // Q blocks that a task of up to `blocks` has, where no sequence is longer than the problem says.
  int most_blocks(int blocks) const {
    const std::int64_t most = core::ceil_div(problem.seqlen_q * group, ops.rows);
    return static_cast<int>(std::clamp<std::int64_t>(most, 1, blocks));
  }

  // Fills in which rows the block holds: count, tile, query and head.
  void place_query_block(const core::Sequence& sequence, int head_k, std::int64_t row0, int count,
                         QueryBlock& block) const;
  // Fills in batch_head too, and starts m and l.
  void describe_query_block(const core::Sequence& sequence, int head_k, std::int64_t row0,
                            int count, QueryBlock& block) const;
  // Starts m, l and O of a block.
  void start_rows(QueryBlock& block) const;
  // Packs Q^T of a described block into block.q_t.
  void pack_query_block(const core::Sequence& sequence, QueryBlock& block) const;
  // Describes the block and packs its Q^T.
  void load_query_block(const core::Sequence& sequence, int head_k, std::int64_t row0, int count,
                        QueryBlock& block) const;
  // scale[r] <- the scale of Q of row r of a described block; null where there are none.
  const float* scales_of_q(const core::Sequence& sequence, const QueryBlock& block,
                           float* scale) const;
  // scale[j] <- the scale of K (of V) of key key0 + j; null where there are none.
  const float* scales(const Tensor& of, const core::Sequence& sequence, int head_k, int key0,
                      int keys, float* scale) const;
  // Packs K, V rows [key0, key0 + keys) into block.k, block.v; either may be null.
  void load_key_block(const core::Sequence& sequence, int head_k, int key0, int keys,
                      KeyBlock& block) const;

  // Ranges of rows [row0, row0 + count), for classification.
  expr::Tile tile(const core::Sequence& sequence, int head_k, std::int64_t row0,
                  std::int64_t count) const;
  expr::Coverage coverage(expr::Tile rows, int key0, int keys) const;
  // Keys of a mixed tile without its second half where no row sees that: on the diagonal of a
  // causal mask every other Q block needs half a K block.
  int visible_keys(const expr::Tile& rows, int key0, int keys) const {
    constexpr int kHalf = kBlockK / 2;
    const bool half =
        keys > kHalf && coverage(rows, key0 + kHalf, keys - kHalf) == expr::Coverage::empty;
    return half ? kHalf : keys;
  }

  // t->s <- masked, modified scores in the units that softmax() takes with factor c(); t->row_max
  // with them. At most kMaxRegisterBlocks tiles.
  void scores(const QueryTile* tile, int tiles, const void* k, int key0, int keys) const;
  // Expression and mask alone, over scores already in t.s. Returns whether anything may have
  // changed.
  bool modify(const QueryBlock& q, int key0, int keys, expr::Coverage coverage,
              TileScratch& t) const;
  // keep[key - key0] bit row <- dropout keeps (row, key) of rows of the sequence `batch`.
  void draw_dropout(const std::int32_t* query, const std::uint32_t* batch_head, std::int32_t batch,
                    int key0, int keys, std::uint32_t* keep) const;
  // The dropout bits of the tile, or null without dropout.
  const std::uint32_t* keep(const QueryBlock& q, int key0, int keys, TileScratch& t) const;

  float c() const { return c_; }  // scores to units of log2
  // Scores to natural units: 1, but for bf16 operands, which softmax_scale is not folded into.
  double natural() const { return natural_; }
  float dropout_scale() const { return dropout_scale_; }  // 1 / (1 - probability)
  const Dropout& dropout() const { return dropout_; }     // with its seed and offset
  std::uint32_t dropout_threshold() const { return dropout_threshold_; }
  const expr::BoundProgram& mask() const { return mask_; }
  const expr::BoundProgram& score() const { return score_; }
  bool has_mask() const { return has_mask_; }
  bool has_score() const { return has_score_; }
  float q_scale() const { return q_scale_; }  // folded into Q^T
  bool has_dropout() const { return dropout_threshold_ != 0; }
  TileScratch tile_scratch() const;  // sizes only, to be carved
  // `program`, whose loads read the tensors of this call.
  expr::BoundProgram bind(const expr::Program& program, Workspace& workspace) const;
  expr::TileContext expression_context(const QueryBlock& q, int key0, int keys,
                                       const TileScratch& t) const;

  // O rows, in the dtype of outputs.o, LSE and max_logit of a finished block: O = o_t / l, with the
  // sink's share of l when there is one. normalized: o_t has been divided by block.l already.
  void store_block(const core::Sequence& sequence, QueryBlock& block, const Outputs& outputs,
                   bool normalized = false) const;
  // Rows of a Q block from their transpose: row <- factor * x_t[dim][row].
  void store_query_rows(const core::Rows& rows, const QueryBlock& block, const float* x_t,
                        int width, float factor) const;
  // Rows [key0, key0 + keys) of dK or dV, of any floating dtype, <- factor *
  // x[key][leading_dim(width)]. Nothing when the tensor is not given.
  void store_key_rows(const Tensor& tensor, const core::Sequence& sequence, int head_k, int key0,
                      int keys, const float* x, int width, float factor) const;
  // Zeroes O and sets LSE to -inf in rows past the lengths.
  void clear_unused_rows(const Outputs& outputs) const;
  // Zeroes gradients in rows past the lengths.
  void clear_unused_gradients(const Gradients& gradients) const;

 private:
  float q_scale_ = 1;
  float c_ = kLog2e;
  double natural_ = 1;
  Dropout dropout_;  // with its seed and offset
  float dropout_scale_ = 1;
  std::uint32_t dropout_threshold_ = 0;
  bool has_mask_ = false, has_score_ = false;
  expr::BoundProgram mask_, score_;
};

// Writes Attention::lse_rest of rows of a sequence, where it is given: of LSE = m + log l.
class LseRest {
 public:
  LseRest(const Attention& a, const core::Sequence& sequence);
  void store(std::int32_t query, std::int32_t head, double m, double l) const;

 private:
  bool given_;
  core::Rows rows_{};
};

// Calls visit(key0, keys, coverage) for each K block in [begin, end) that some row may see, in
// increasing order. Ranges of blocks are classified before single ones, so that a window over a
// long sequence costs O(blocks seen + log).
template <class Visit>
void for_visible_blocks(const Attention& a, const expr::Tile& rows, std::int64_t begin,
                        std::int64_t end, const Visit& visit) {
  if (begin >= end) return;
  const expr::Coverage coverage =
      a.coverage(rows, static_cast<int>(begin), static_cast<int>(end - begin));
  if (coverage == expr::Coverage::empty) return;
  if (coverage == expr::Coverage::full || end - begin <= kBlockK) {
    for (std::int64_t key = begin; key < end; key += kBlockK) {
      const std::int64_t keys = end - key < kBlockK ? end - key : kBlockK;
      visit(static_cast<int>(key), static_cast<int>(keys), coverage);
    }
    return;
  }
  const std::int64_t blocks = core::ceil_div(end - begin, kBlockK);
  const std::int64_t middle = begin + blocks / 2 * kBlockK;
  for_visible_blocks(a, rows, begin, middle, visit);
  for_visible_blocks(a, rows, middle, end, visit);
}

}  // namespace attn::cpu
