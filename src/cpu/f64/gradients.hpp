// What the f64 backward pass knows of every row, and the gradients of one tile.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "cpu/f64/tiles.hpp"
#include "cpu/pairs.hpp"
#include "cpu/workers.hpp"

namespace attn::cpu::f64 {

// A Q block with its dO, and what the forward pass left of its rows.
struct GradientRows {
  QueryRows rows;
  double *q = nullptr, *d_o = nullptr;  // [kRows][leading dimension]
  const double *lse = nullptr, *delta = nullptr;
  const double* weight = nullptr;  // null: 1 of every row
  bool finite = true;              // q and dO, as of Keys

  template <class Carver>
  void carve(Carver& c, int dim, int dim_v) {
    c.take(q, std::size_t{kRows} * static_cast<std::size_t>(leading_dim_f64(dim)));
    c.take(d_o, std::size_t{kRows} * static_cast<std::size_t>(leading_dim_f64(dim_v)));
  }
};

class GradientTiles {
 public:
  // Computes D = dO . O - dLSE of every row, and the weights of far ones.
  GradientTiles(const Attention& a, const Outputs& outputs, const OutputGradients& d_outputs,
                const Workers& workers);

  const Tiles& tiles() const { return tiles_; }
  std::int64_t rows(std::int64_t pair) const {
    return first_row_[at(pair + 1)] - first_row_[at(pair)];
  }
  std::int64_t most_rows() const;
  // Of the pair's rows.
  const double* lse(std::int64_t pair) const { return lse_ + first_row_[at(pair)]; }
  const double* delta(std::int64_t pair) const { return delta_ + first_row_[at(pair)]; }
  // What P = e^(s - LSE) of a row is multiplied by: where LSE is so far from 0 that it says little
  // of how many keys the row sees, 1 / the sum of these P. Null: 1 of all. Example: of three keys
  // with -1e20 added LSE is -1e20, and P is 1 of each.
  const double* weight(std::int64_t pair) const {
    return weight_ == nullptr ? nullptr : weight_ + first_row_[at(pair)];
  }

  // Loads rows [row0, row0 + kRows) of the pair, or as many as there are.
  void load(std::int64_t pair, std::int64_t row0, GradientRows& block) const;
  // t.s <- P, and t.ds <- the gradient of the changed scores; keys has k_t and v_t. Dropout is in
  // both.
  void value_gradients(const GradientRows& block, const Keys& keys, expr::Coverage coverage,
                       const Tile& t) const;
  // t.ds <- its product with the derivative of the score expression.
  void through_score(const GradientRows& block, const Keys& keys, const Tile& t) const;

 private:
  void weigh_far_rows(const Workers& workers);

  static std::size_t at(std::int64_t pair) { return static_cast<std::size_t>(pair); }

  const Attention& a_;
  Tiles tiles_;
  const OutputGradients& d_outputs_;
  std::pmr::vector<std::int64_t> first_row_;  // [pairs + 1]
  double *lse_ = nullptr, *delta_ = nullptr, *weight_ = nullptr;
  bool has_derivative_ = false;
  expr::BoundProgram derivative_;
};

// Gradients of the buffers that the score reads: dS times its derivative by each load.
void backward_buffers(const Attention& a, const GradientTiles& g, const Gradients& gradients,
                      const Workers& workers);
core::Size buffer_gradient_bytes(const Problem& problem, const Expressions& expressions);

}  // namespace attn::cpu::f64
