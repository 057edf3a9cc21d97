#include "cuda/kernels/condition.hpp"

#include <algorithm>

#include "core/expr/build.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/mask_bounds.hpp"

namespace attn::cuda {
namespace {

using expr::Expr;
using expr::Node;
using expr::Op;

// query / B with such a B, or position / B where blocks of positions begin at multiples of 128
// rows.
bool counts_rows_of_128(const Problem& p, const Expr& index) {
  const Node& n = index.node();
  if (n.op != Op::div) return false;
  const bool by_position = expr::is_position(n.args[0]) && (p.seqlen_k - p.seqlen_q) % 128 == 0;
  if (n.args[0].node().op != Op::query && !by_position) return false;
  const Node& divisor = n.args[1].node();
  return divisor.op == Op::constant && divisor.int_value > 0 && divisor.int_value % 128 == 0 &&
         divisor.int_value % 3 != 0;
}

// key / B with such a B.
bool counts_keys_of_64(const Expr& index) {
  const Node& n = index.node();
  if (n.op != Op::div || n.args[0].node().op != Op::key) return false;
  const Node& divisor = n.args[1].node();
  return divisor.op == Op::constant && divisor.int_value > 0 && divisor.int_value % 128 == 64;
}

// Whether a buffer is read at an index of which counts() is true.
template <class Counts>
bool reads_at(const Expr& e, const Counts& counts) {
  const Node& n = e.node();
  const auto reads = [&](const Expr& operand) { return reads_at(operand, counts); };
  return (n.op == Op::load && std::ranges::any_of(n.args, counts)) ||
         std::ranges::any_of(n.args, reads);
}

bool is_long(const Problem& p, std::int64_t length) {
  if (std::min(p.seqlen_q, p.seqlen_k) < length || p.layout_k == Layout::paged ||
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
      return !problem.mask.empty() && reads_at(problem.mask, [&](const Expr& index) {
        return counts_rows_of_128(problem, index);
      });
    case Condition::key_blocks_of_64:
      return !problem.mask.empty() && reads_at(problem.mask, counts_keys_of_64);
    case Condition::long_and_plain: {
      const bool short_tiles =
          !problem.mask.empty() && std::max(problem.head_dim, problem.head_dim_v) > 96;
      return problem.score.empty() && is_long(problem, short_tiles ? 8192 : 4096);
    }
    case Condition::plain_from_4096:
      return problem.score.empty() && is_long(problem, 4096);
    case Condition::long_with_score:
      return !problem.score.empty() && is_long(problem, 4096) && !loads_elements(problem.score);
    case Condition::score_of_elements:
      return !problem.score.empty() && loads_elements(problem.score);
    case Condition::narrow_values:
      return problem.head_dim_v <= 128;
    case Condition::few_keys:
      return problem.seqlen_k <= 576;
    case Condition::few_masked_keys:
      return problem.seqlen_k <= 576 && !problem.mask.empty();
    case Condition::always:
      break;
  }
  return true;
}

}  // namespace attn::cuda
