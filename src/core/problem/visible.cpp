#include "core/problem/visible.hpp"

namespace attn::core {
namespace {

bool sees_any(const expr::Expr& mask, const expr::Bindings& buffers, const expr::Tile& t) {
  switch (expr::classify(mask, t, buffers)) {
    case expr::Coverage::empty:
      return false;
    case expr::Coverage::full:
      return true;
    case expr::Coverage::mixed:
      break;
  }
  const std::int64_t queries = std::int64_t{t.query_max} - t.query_min;
  const std::int64_t keys = std::int64_t{t.key_max} - t.key_min;
  const std::int64_t heads = std::int64_t{t.head_max} - t.head_min;
  if (queries == 0 && keys == 0 && heads == 0) {
    const expr::Point at{.query = t.query_min,
                         .key = t.key_min,
                         .batch = t.batch,
                         .head = t.head_min,
                         .seqlen_q = t.seqlen_q,
                         .seqlen_k = t.seqlen_k};
    return expr::evaluate<float>(mask, at, buffers) != 0;
  }
  expr::Tile low = t;
  expr::Tile high = t;
  const auto halve = [](std::int32_t min, std::int32_t max, std::int32_t& low_max,
                        std::int32_t& high_min) {
    low_max = min + (max - min) / 2;
    high_min = low_max + 1;
  };
  if (heads > 0) {
    halve(t.head_min, t.head_max, low.head_max, high.head_min);
  } else if (queries >= keys) {
    halve(t.query_min, t.query_max, low.query_max, high.query_min);
  } else {
    halve(t.key_min, t.key_max, low.key_max, high.key_min);
  }
  return sees_any(mask, buffers, low) || sees_any(mask, buffers, high);
}

}  // namespace

bool sees(const Problem& problem, const Inputs& inputs, const Sequence& sequence,
          std::int64_t query, std::int64_t head_k, std::int64_t key) {
  if (problem.mask.empty()) return true;
  const std::int64_t group = problem.heads_q / problem.heads_k;
  expr::Tile t;
  t.query_min = t.query_max = static_cast<std::int32_t>(query);
  t.key_min = t.key_max = static_cast<std::int32_t>(key);
  t.batch = sequence.batch;
  t.head_min = static_cast<std::int32_t>(head_k * group);
  t.head_max = static_cast<std::int32_t>((head_k + 1) * group - 1);
  t.seqlen_q = sequence.length_q;
  t.seqlen_k = sequence.length_k;
  return sees_any(problem.mask, inputs.buffers, t);
}

bool sees_any(const Problem& problem, const Inputs& inputs, const Sequence& sequence,
              std::int64_t begin, std::int64_t end) {
  if (sequence.length_q == 0 || begin >= end) return false;
  if (problem.mask.empty()) return true;
  expr::Tile t;
  t.query_max = sequence.length_q - 1;
  t.key_min = static_cast<std::int32_t>(problem.seqlen_prefix + begin);
  t.key_max = static_cast<std::int32_t>(problem.seqlen_prefix + end - 1);
  t.batch = sequence.batch;
  const bool by_head = expr::depends_on(problem.mask, expr::Op::head);
  t.head_max = by_head ? static_cast<std::int32_t>(problem.heads_q - 1) : 0;
  t.seqlen_q = sequence.length_q;
  t.seqlen_k = sequence.length_k;
  return sees_any(problem.mask, inputs.buffers, t);
}

}  // namespace attn::core
