// Standard attention as it is defined (problem.hpp), for every feature: slow, obvious, on one
// thread. Everything else in the library is compared with it. O(seqlen_k) extra memory forward,
// O(seqlen_k head_dim) backward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/problem.hpp"
#include "attn/run.hpp"

namespace attn::reference {

enum class Precision : std::uint8_t {
  f64,      // every step in double, of f64 problems in long double: the definition
  f32,      // every step in float (double when the problem is f64)
  problem,  // as f32, and S, P, O, dP, dS rounded to problem.dtype, as standard attention built
            // from matrix products would hold them. This and f32 are the yardsticks of the error
            // rule (docs/numerics.md).
  fused,    // as f32, and P and dS rounded to problem.dtype, as operands of the products of fused
            // attention are; backward O too, which it has from forward
  tensor_core,    // as fused, on a GPU's tensor cores: products of matrices add as they do
                  // (tensor_core.hpp), and forward P is 2^(c t - c max) with c = log2 e, one fused
                  // multiply-add of a rounded c max, divided by its sum when it is multiplied by V
  tensor_core_8,  // as tensor_core, forward alone and by products of 8-bit floats: Q, K and V are
                  // as they are stored, P times 2^8 is rounded to e4m3, and products with V add up
                  // over 128 keys at most, whose sums are added in float
};

// Sums start after `turn` eighths of their terms and go round; the scale multiplies Q or S; dK and
// dV of a group add all rows of a query head before those of the next, or all heads of a row before
// the next row. In double it matters to nobody; the error of the yardstick depends on it as that of
// any attention does on the order its matrix products add in. Products of 16-bit numbers are exact
// in float, those of a scaled Q are not. Where all heads have the same dO, its terms are added
// again and again, and partial sums grow as many times larger when they follow each other.
struct Order {
  int turn = 0;  // 0 to 7
  bool scale_q = false;
  bool heads_inside = false;  // rows outside
  std::int64_t at(std::int64_t step, std::int64_t terms) const {
    return (step + terms * turn / 8) % terms;
  }
};

// Says, for a problem whose rows and keys are some of a larger one's, where they stand in that.
// Dropout draws a bit for each place of the larger problem (docs/numerics.md).
struct DropoutPlaces {
  std::int64_t first_head = 0;               // batch * heads_q + head of the first query head
  std::span<const std::int32_t> query, key;  // of each row and key; empty: where they stand here
};

// Which keys the rows of a problem see: its mask, evaluated once for all calls that are given it, a
// bit for each row and key. Without a mask, or with lists of keys, it holds nothing and calls look
// themselves.
class VisibleKeys {
 public:
  // The arguments are those of forward().
  VisibleKeys(const Problem& problem, const Inputs& inputs);
  bool given() const { return !sequences_.empty(); }
  // Whether row i of a query head sees key j of its sequence.
  bool at(std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t j) const {
    const OfSequence& keys = sequences_[static_cast<std::size_t>(batch)];
    const std::int64_t row = head % heads_ * keys.rows + i;
    return keys.visible[static_cast<std::size_t>(row * keys.columns + j)];
  }

 private:
  struct OfSequence {
    std::int64_t rows, columns;  // queries, keys
    std::vector<bool> visible;   // [heads_, rows, columns]
  };
  std::int64_t heads_;  // 1 where all see the same
  std::vector<OfSequence> sequences_;
};

// `problem` is complete and the arguments are valid (core/validate/validate.hpp), but outputs and
// gradients may have any floating dtype: f64 shows the result unrounded. Masks are evaluated in
// float, as on every backend, so that all of them mask alike; scores in the arithmetic of
// `precision`, infinite past the range of float. visible: of this problem, or null. Rows past a
// length: O, dQ, dK, dV = 0, LSE = -inf.
void forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
             Precision precision = Precision::f64, Order order = {},
             const DropoutPlaces& places = {}, const VisibleKeys* visible = nullptr);

// Takes D from O and P from LSE of `outputs`, as every backend does; where one is not given, the
// reference's own of `precision` takes its place.
void backward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients,
              Precision precision = Precision::f64, Order order = {},
              const DropoutPlaces& places = {}, const VisibleKeys* visible = nullptr);

}  // namespace attn::reference
