// Shorthands for common masks and score changes. Each is an ordinary expression tree.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attn/export.hpp"
#include "attn/expr.hpp"

namespace ATTN_API attn {

enum class CausalAlignment : std::uint8_t {
  bottom_right,  // the last query sees the last key: key <= query + (seqlen_k - seqlen_q)
  top_left,      // the first query sees the first key only: key <= query
};

expr::Expr causal(CausalAlignment alignment = CausalAlignment::bottom_right);
// Keys from `left` before to `right` after the query's diagonal (bottom-right aligned); a negative
// bound is no bound.
expr::Expr window(std::int32_t left, std::int32_t right);
// Prefix language model: the first n keys are seen by every query, later ones causally.
expr::Expr prefix(std::int32_t n);
// A query sees the keys of its own document. ids: i32 [seqlen] or [batch, seqlen]; without ids_k
// queries and keys share ids.
expr::Expr documents(const Tensor& ids);
expr::Expr documents(const Tensor& ids_q, const Tensor& ids_k);

// Block-sparse attention (FlashAttention paper, section 3.3 and algorithm 5): block (i, j) of
// block_q x block_k scores is computed if its byte is non-zero. Owns its bytes.
class BlockMask {
 public:
  BlockMask(std::int64_t blocks_q, std::int64_t blocks_k, std::int32_t block_q,
            std::int32_t block_k);
  // Fixed butterfly pattern of n x n blocks (Pixelated Butterfly): the block diagonal, and i, j
  // that differ in one bit.
  static BlockMask butterfly(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int32_t block);

  std::uint8_t& at(std::int64_t i, std::int64_t j);
  std::uint8_t at(std::int64_t i, std::int64_t j) const;
  std::int64_t blocks_q() const noexcept { return blocks_q_; }
  std::int64_t blocks_k() const noexcept { return blocks_k_; }
  double density() const noexcept;  // share of non-zero blocks
  expr::Expr mask() const;  // block_mask[query / block_q, key / block_k] != 0, sharing the bytes

 private:
  std::int64_t blocks_q_, blocks_k_;
  std::int32_t block_q_, block_k_;
  std::shared_ptr<std::vector<std::uint8_t>> bytes_;
};

// Score changes, applied to score = softmax_scale * q.k.
expr::Expr softcap(float cap);           // cap * tanh(score / cap)
expr::Expr alibi(const Tensor& slopes);  // score - slopes[head] * |query + seqlen_k - seqlen_q -
                                         // key|; f32 [heads_q]
std::vector<float> alibi_slopes(std::int64_t heads);  // 2^(-8 (h + 1) / heads), Press et al.
// score + bias[batch, head, query, key]; dimensions of size 1 broadcast; f32, bf16 or f16 of rank 2
// or 4.
expr::Expr bias(const Tensor& bias);
// `outer` applied to the result of `inner`.
expr::Expr compose(const expr::Expr& outer, const expr::Expr& inner);

}  // namespace attn
