#include "cuda/heuristics/condition.hpp"

#include <algorithm>

#include "cuda/jit/expression_factors.hpp"
#include "cuda/jit/mask_bounds.hpp"

namespace attn::cuda {
namespace {

using expr::Expr;
using expr::Node;
using expr::Op;

// query / B with such a B.
bool counts_rows_of_128(const Expr& index) {
  const Node& n = index.node();
  if (n.op != Op::div || n.args[0].node().op != Op::query) return false;
  const Node& divisor = n.args[1].node();
  return divisor.op == Op::constant && divisor.int_value > 0 && divisor.int_value % 128 == 0 &&
         divisor.int_value % 3 != 0;
}

bool reads_rows_of_128(const Expr& e) {
  const Node& n = e.node();
  return (n.op == Op::load && std::ranges::any_of(n.args, counts_rows_of_128)) ||
         std::ranges::any_of(n.args, reads_rows_of_128);
}

bool is_long(const Problem& p) {
  if (std::min(p.seqlen_q, p.seqlen_k) < 4096 || p.layout_k == Layout::paged ||
      p.dropout.probability > 0) {
    return false;
  }
  const MaskBounds bounds = mask_bounds(p.mask);
  return bounds.first.empty() && bounds.rest.empty();
}

}  // namespace

bool holds(Condition condition, const Problem& problem) {
  switch (condition) {
    case Condition::block_rows_of_128:
      return !problem.mask.empty() && reads_rows_of_128(problem.mask);
    case Condition::long_and_plain:
      return problem.score.empty() && is_long(problem);
    case Condition::long_with_score:
      return !problem.score.empty() && is_long(problem) && !loads_elements(problem.score);
    case Condition::narrow_values:
      return problem.head_dim_v <= 128;
    case Condition::few_keys:
      return problem.seqlen_k <= 576;
    case Condition::few_masked_keys:
      return problem.seqlen_k <= 576 && !problem.mask.empty();
    default:
      return true;
  }
}

}  // namespace attn::cuda
