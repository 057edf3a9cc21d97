// What the backward algorithms share: D and LSE of every row, the transposed and natural rows of a
// Q block, and the tile step from S to P and dS.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "attn/run.hpp"
#include "cpu/attention.hpp"
#include "cpu/listed_keys.hpp"
#include "cpu/workers.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {

// A Q block with what its gradients need. Lanes past count have P = 0.
struct GradientBlock {
  QueryBlock q;             // q_t [dim][rows]
  void* do_t = nullptr;     // [dim_v][rows]
  void* q_rows = nullptr;   // [rows][leading_dim(dim)], unscaled; zeros where q_apart
  void* do_rows = nullptr;  // [rows][leading_dim(dim_v)]; zeros where do_apart
  std::uint64_t q_apart = 0, do_apart = 0;  // bit r: row r is not finite, see nonfinite.hpp
  const float* lse = nullptr;               // [rows], natural
  const float* delta = nullptr;             // [rows], D = rowsum(dO * O) - dLSE
  const float* weight = nullptr;            // [rows], of P; null: 1

  void carve(Carver& c, int dim, int dim_v, DType operand);
  // Takes memory for a block and for what it points to.
  static void carve_one(Carver& c, GradientBlock*& block, int dim, int dim_v, DType operand);
};

// Tiles of one step; all [kBlockK][rows].
struct GradientTiles {
  TileScratch tile;          // tile.s: scores, then P where kept; tile.p: P as dV takes it
  float* ds = nullptr;       // dP, then dS
  void* ds_rows = nullptr;   // dS as dK takes it: ds itself for f32 operands
  void* ds_pairs = nullptr;  // dS as dQ takes it, likewise
  float* raw = nullptr;      // scores before the expression, when there is one
  float* factor = nullptr;   // d expression / d score

  void carve(Carver& c);
};

// A Q block against some K, V block.
struct GradientTile {
  const GradientBlock* block = nullptr;
  expr::Coverage coverage = expr::Coverage::full;
  GradientTiles* t = nullptr;
};

class GradientContext {
 public:
  // Computes lse and D in parallel. d_outputs and outputs as in backward().
  GradientContext(const Attention& a, const Outputs& outputs, const OutputGradients& d_outputs,
                  const Workers& workers);

  // Q blocks are numbered over all (sequence, K, V head) pairs (pairs.hpp); first_block(number of
  // pairs) is their number. With lists of keys the rows of a block are of one query.
  std::int64_t first_block(std::int64_t pair) const {
    return first_block_[static_cast<std::size_t>(pair)];
  }
  std::int64_t blocks(std::int64_t pair) const { return first_block(pair + 1) - first_block(pair); }
  std::int64_t pair_of_block(std::int64_t block) const;
  // Rows of Q block i of a pair, the first and how many.
  struct BlockRows {
    std::int64_t first;
    int count;
  };
  BlockRows block_rows(std::int64_t pair, std::int64_t i) const;
  // Blocks that the rows of a query take, with lists of keys.
  std::int64_t blocks_of_query() const { return core::ceil_div(a_.group, a_.ops.rows); }
  // Where a row of a pair stands in what lse, delta and weight give of the pair's first block.
  std::int64_t lane_of(std::int64_t row) const;
  const float* lse(std::int64_t block) const { return lse_ + block * a_.ops.rows; }
  const float* delta(std::int64_t block) const { return delta_ + block * a_.ops.rows; }
  // What exp(s - LSE) is multiplied by to be P, of each row; null: 1.
  const float* weight(std::int64_t block) const {
    return weight_ == nullptr ? nullptr : weight_ + block * a_.ops.rows;
  }

  // Describes and packs Q block i of the pair.
  void load(std::int64_t pair, std::int64_t i, GradientBlock& block) const;

  // FlashAttention, algorithm 4, lines 11 to 20, for up to kMaxRegisterBlocks tiles: t->tile.s <- P
  // where dropout keeps it, t->ds <- dS, the gradient with respect to the scaled score before the
  // expression; with bf16 operands rounded as well, and then the f32 numbers may be left out where
  // no row or key is set apart.
  void tile_gradients(const GradientTile* tile, int tiles, const KeyBlock& keys) const;
  // Does the same but leaves out the derivative of the expression: t->ds <- the gradient with
  // respect to the value of the expression; t->raw <- its scores.
  void tile_value_gradients(const GradientTile* tile, int tiles, const KeyBlock& keys) const;

  // Packs rows of K with those that are not finite as zeros; k_apart says which. k_pairs, where it
  // is not null: K again, as dQ takes it.
  void load_keys(const core::Sequence& sequence, int head_k, int key0, int keys, KeyBlock& block,
                 void* k_pairs = nullptr) const;
  // The same of the keys that a list names.
  void load_keys(const core::Sequence& sequence, int head_k, const ListedKeys& listed,
                 KeyBlock& block, void* k_pairs = nullptr) const;
  // dq_t[d][row] += dS[key][row] k[key][d] of the keys set apart, where dS is not 0.
  void add_keys_apart(const KeyBlock& keys, const GradientTile& tile, float* dq_t) const;
  // dv[key] += P[key][row] dO[row] and dk[key] += dS[key][row] q[row] of the rows set apart, where
  // P and dS are not 0.
  void add_rows_apart(const GradientTile& tile, int keys, float* dk, float* dv) const;
  // Write finished sums of keys [key0, key0 + keys), [key][leading dimension], to dK and dV.
  void store_key_gradients(const Gradients& gradients, const core::Sequence& sequence, int head_k,
                           int key0, int keys, const float* dk, const float* dv) const;
  GradientTiles tiles() const;  // sizes only, to be carved

 private:
  // Fills weight_ where an LSE is too far from 0 to say what P adds up to.
  void weigh_far_rows(const Workers& workers);
  // exp(s - LSE) of the rows of a block, summed over all keys and the sink.
  void sum_exponentials(std::int64_t pair, const GradientTile& tile, const KeyBlock& room,
                        double* sum) const;
  // t->tile.s <- exp(s - LSE); t->raw as in tile_value_gradients.
  void exponentials(const GradientTile* tile, int tiles, const KeyBlock& keys) const;
  // Row j of the block's K.
  const std::byte* key_row(const GradientTile& tile, const KeyBlock& keys, int j) const;
  // Packs rows k and v, which are changed, as load_keys does.
  void pack_keys(const std::byte** k, const std::byte** v, int keys, KeyBlock& block,
                 void* k_pairs) const;
  // Whether nothing needs P and dS in f32, or their whole tile at once.
  bool in_strips(const GradientTile& tile, const KeyBlock& keys) const;
  // P and dS in the operand type, some keys at a time; t->factor is scratch.
  void gradients_in_strips(const GradientTile& tile, const KeyBlock& keys) const;

  const Attention& a_;
  OutputGradients d_outputs_;
  std::pmr::vector<std::int64_t> first_block_;  // [pairs + 1]
  float* lse_ = nullptr;
  float* delta_ = nullptr;
  float* weight_ = nullptr;  // null: all 1
  bool has_factor_ = false;  // the expression's derivative is not 1
  expr::BoundProgram derivative_;
};

}  // namespace attn::cpu
