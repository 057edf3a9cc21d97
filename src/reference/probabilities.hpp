// One row of S, P and LSE of one query head: the part that forward and backward share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "attn/run.hpp"
#include "core/philox.hpp"
#include "core/rows.hpp"
#include "reference/matrix.hpp"

namespace attn::reference {

template <class Real>
struct Head {
  const Problem& problem;
  const Inputs& inputs;
  const core::Sequence& sequence;
  DType rounding;  // of S and P; f64 rounds nothing
  std::int64_t head;
  Matrix<Real> q, k, v;
  Matrix<Real> k_transposed;  // [head_dim, keys]: scores of a row add up key beside key

  Head(const Problem& p, const Inputs& in, const core::Sequence& s, DType round_to, std::int64_t h)
      : problem(p),
        inputs(in),
        sequence(s),
        rounding(round_to),
        head(h),
        q(load_matrix<Real>(s.q, p.dtype, h, s.length_q, p.head_dim)),
        k(load_matrix<Real>(s.k, p.dtype, head_k(), s.length_k, p.head_dim)),
        v(load_matrix<Real>(s.v, p.dtype, head_k(), s.length_k, p.head_dim_v)),
        k_transposed(transposed(k)) {}

  std::int64_t head_k() const { return head / (problem.heads_q / problem.heads_k); }
  std::int64_t keys() const { return sequence.length_k; }
  Real sink() const {
    return problem.sink ? static_cast<Real>(static_cast<const float*>(inputs.sink.data)[head])
                        : -std::numeric_limits<Real>::infinity();
  }
  expr::Point point(std::int64_t i, std::int64_t j, Real score) const {
    return {.score = static_cast<double>(score),
            .query = static_cast<std::int32_t>(i),
            .key = static_cast<std::int32_t>(j),
            .batch = sequence.batch,
            .head = static_cast<std::int32_t>(head),
            .seqlen_q = sequence.length_q,
            .seqlen_k = sequence.length_k};
  }
  bool visible(std::int64_t i, std::int64_t j) const {
    return problem.mask.empty() ||
           expr::evaluate<float>(problem.mask, point(i, j, 0), inputs.buffers) != 0;
  }
  // The dropout factor Z of (i, j).
  Real dropout(std::int64_t i, std::int64_t j) const {
    const Dropout& d = problem.dropout;
    const std::uint32_t threshold = core::dropout_threshold(d.probability);
    if (threshold == 0) return 1;
    const auto batch_head = static_cast<std::uint32_t>(sequence.batch * problem.heads_q + head);
    return core::dropout_keep(d.seed, d.offset, threshold, batch_head,
                              static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j))
               ? static_cast<Real>(core::dropout_scale(threshold))
               : Real{0};
  }
};

template <class Real>
struct Row {
  std::vector<Real> s;  // softmax_scale * q.k
  std::vector<Real> p;  // 0 where not visible
  Real lse = 0;
  Real p_sink = 0;  // share of the sink in the denominator
};

template <class Real>
Row<Real> probabilities(const Head<Real>& head, std::int64_t i) {
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  const Problem& problem = head.problem;
  const std::int64_t n = head.keys();
  Row<Real> row{.s = std::vector<Real>(static_cast<std::size_t>(n)), .p = {}};
  for (std::int64_t c = 0; c < problem.head_dim; ++c) {
    add_scaled(row.s.data(), head.q[i][c], head.k_transposed[c], n);
  }
  for (Real& s : row.s) s = rounded(static_cast<Real>(problem.scale()) * s, head.rounding);

  row.p = row.s;  // holds the changed scores until they are exponentiated
  Real max = head.sink();
  for (std::int64_t j = 0; j < n; ++j) {
    Real& score = row.p[static_cast<std::size_t>(j)];
    if (!head.visible(i, j)) {
      score = -kInfinity;
    } else if (!problem.score.empty()) {
      score =
          rounded(expr::evaluate<Real>(problem.score, head.point(i, j, score), head.inputs.buffers),
                  head.rounding);
    }
    if (score > max || std::isnan(score)) max = score;
  }
  if (max == -kInfinity) {
    std::fill(row.p.begin(), row.p.end(), Real{0});
    row.lse = -kInfinity;
    return row;
  }
  row.p_sink = std::exp(head.sink() - max);
  Real sum = row.p_sink;
  for (Real& p : row.p) sum += p = std::exp(p - max);
  for (Real& p : row.p) p = rounded(p / sum, head.rounding);
  row.p_sink /= sum;
  row.lse = max + std::log(sum);
  return row;
}

}  // namespace attn::reference
