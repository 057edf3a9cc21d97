// Shorthands for common masks and score changes. Each is an ordinary expression tree. The tensors
// that they read must have the shapes said here, with the problem's seqlen_q and seqlen_k, also
// where sequences are shorter; a size of 1 serves every index, but not of blocks, nor of the
// queries and words of a tree. make_plan() and calls refuse all others. A function here throws
// Error(invalid_argument) for what it can see itself: a dtype, a rank, a number out of range. Their
// tensors are not copied and must live as long as calls read them, or be bound by name
// (Inputs::buffers). Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attn/export.hpp"
#include "attn/expr.hpp"

namespace ATTN_API attn {

// Where a query stands among the keys. It matters where seqlen_q and seqlen_k differ: with a cache,
// and with sequences of their own lengths, each of which is aligned by itself.
enum class Alignment : std::uint8_t {
  bottom_right,  // at symbols().position: the last query at the last key. A query before the first
                 // key sees none by causal, documents and block masks
  top_left,      // at symbols().query: the first query at the first key
};

// Keys up to the query's place.
expr::Expr causal(Alignment alignment = Alignment::bottom_right);
// Keys from `left` before to `right` after the query's place; a negative bound is no bound.
expr::Expr window(std::int32_t left, std::int32_t right,
                  Alignment alignment = Alignment::bottom_right);
// Prefix language model: the first n keys are seen by every query, later ones causally.
expr::Expr prefix(std::int32_t n, Alignment alignment = Alignment::bottom_right);
// A query sees the keys of its own document. ids: one a place, i32 [seqlen_k] or [batch, seqlen_k]
// (top_left: max(seqlen_q, seqlen_k) in the place of seqlen_k, as a query may stand past the keys).
expr::Expr documents(const Tensor& ids, Alignment alignment = Alignment::bottom_right);
// Ids of their own for the rows of Q, i32 [seqlen_q] or [batch, seqlen_q], and for the keys, i32
// [seqlen_k] or [batch, seqlen_k]: nothing needs to be aligned.
expr::Expr documents(const Tensor& ids_q, const Tensor& ids_k);

// Speculative decoding: the queries of a sequence are draft tokens that form a tree, and its last
// keys are theirs, one for each query; seqused_k counts them. A decoding sequence is a draft of one
// token, with the word 1. A query sees all keys before the draft, and draft key t where bit
// t % 32 of words[batch, query, t / 32] is set. words: i32 [batch or 1, seqlen_q, ceil(seqlen_q /
// 32)]; a shorter sequence, packed ones too, uses the first of its rows and bits and ignores all
// others. Words of a step in memory of the GPU: leave data null and bind "tree" by name.
expr::Expr tree_mask(const Tensor& words);
// Those words of one sequence, [seqlen_q, ceil(seqlen_q / 32)]: each draft token sees itself, its
// parent and all that lie above. parents[i] is the parent of token i, before it in the draft, or -1
// where that is the last token before the draft. Rows past parents.size() are 0; seqlen_q = 0 means
// parents.size(). Throws Error(invalid_argument) for another parent, and for fewer rows than that.
std::vector<std::int32_t> tree_words(std::span<const std::int32_t> parents,
                                     std::int64_t seqlen_q = 0);

// Block-sparse attention (FlashAttention paper, section 3.3 and algorithm 5): block (i, j) of
// block_q x block_k scores is computed if its byte is non-zero. Owns its bytes, in memory of the
// CPU; copies and mask() share them. Threads may read it at the same time; who writes is alone.
class BlockMask {
 public:
  // Makes a mask whose blocks are all empty. Throws Error(invalid_argument) for sizes below 1,
  // counts below 0 and more than 2^30 blocks, Error(out_of_memory) where there is none for them.
  BlockMask(std::int64_t blocks_q, std::int64_t blocks_k, std::int32_t block_q,
            std::int32_t block_k);
  // Without moves: one that was moved from has its bytes.
  BlockMask(const BlockMask&) = default;
  BlockMask& operator=(const BlockMask&) = default;
  ~BlockMask() = default;
  // Fixed butterfly pattern (Pixelated Butterfly): the block diagonal, and i, j that differ in one
  // bit, in as many blocks of block x block as cover rows x seqlen_k scores. rows: seqlen_k, or
  // seqlen_q for a top_left mask.
  static BlockMask butterfly(std::int64_t rows, std::int64_t seqlen_k, std::int32_t block);

  // Throws Error(invalid_argument) for a block that is not there.
  std::uint8_t& at(std::int64_t i, std::int64_t j);
  std::uint8_t at(std::int64_t i, std::int64_t j) const;
  std::int64_t blocks_q() const noexcept { return blocks_q_; }
  std::int64_t blocks_k() const noexcept { return blocks_k_; }
  double density() const noexcept;  // share of non-zero blocks
  // block_mask[place / block_q, key / block_k] != 0, sharing the bytes. blocks_q is that of
  // seqlen_k rows, ceil(seqlen_k / block_q); top_left: of seqlen_q rows. A call with a cache thus
  // reads the last rows of blocks of the same pattern.
  expr::Expr mask(Alignment alignment = Alignment::bottom_right) const;

 private:
  std::int64_t blocks_q_, blocks_k_;
  std::int32_t block_q_, block_k_;
  std::shared_ptr<std::vector<std::uint8_t>> bytes_;
};

// Score changes, applied to score = softmax_scale * q.k.
expr::Expr softcap(float cap);  // cap * tanh(score / cap); cap is finite and above 0
// score - slopes[head] * |place of the query - key|; slopes: f32 [heads_q].
expr::Expr alibi(const Tensor& slopes, Alignment alignment = Alignment::bottom_right);
// 2^(-8 (h + 1) / heads) of head h, also where heads is no power of two (Press, Smith and Lewis
// 2022).
std::vector<float> alibi_slopes(std::int64_t heads);
// score + bias[batch, head, query, key], or + bias[query, key]; f32, bf16 or f16. Unlike the others
// it is top_left unless told: a bias has a row for each row of Q, [batch, heads_q, seqlen_q,
// seqlen_k], as S itself and PyTorch's attn_mask, so that decoding over n keys takes n numbers a
// head and not n^2. bottom_right reads row symbols().position of [batch, heads_q, seqlen_k,
// seqlen_k]. A dimension of size 1 broadcasts.
expr::Expr bias(const Tensor& bias, Alignment alignment = Alignment::top_left);
// `outer` applied to the result of `inner`; an empty one changes nothing.
expr::Expr compose(const expr::Expr& outer, const expr::Expr& inner);

}  // namespace attn
