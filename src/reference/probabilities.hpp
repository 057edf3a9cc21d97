// One row of S, LSE and P of one query head: the part that forward and backward share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <type_traits>
#include <vector>

#include "attn/run.hpp"
#include "core/cache_type.hpp"
#include "core/float8.hpp"
#include "core/philox.hpp"
#include "core/problem/dropout_state.hpp"
#include "core/problem/key_list.hpp"
#include "core/problem/rows.hpp"
#include "reference/matrix.hpp"
#include "reference/product_sum.hpp"
#include "reference/reference.hpp"

namespace attn::reference {

// What is rounded to which type; f64 rounds nothing.
struct Rounding {
  DType scores;    // S, dP, and the P that dS is made from
  DType operands;  // P and dS in products, and O where backward has it from forward
  DType dropped;   // P times dropout's factor; fused implementations multiply the product instead
  DType output;    // O
  const TensorCore* tensor_core = nullptr;  // that adds the products
  bool e4m3 = false;                        // P in products is of these, times kPScale
};
// P of a row goes up to its largest, 1, as 8-bit floats far below the largest of these: times 2^8
// it uses their range (FlashAttention-3).
inline constexpr double kPScale = 0x1p8;
// Keys whose products with V add up in an 8-bit tensor core; partial sums are added in float.
inline constexpr std::int64_t kKeysOfPart = 128;
inline Rounding rounding(Precision precision, const Problem& p) {
  const DType dtype = p.dtype;
  switch (precision) {
    case Precision::f64:
      return {DType::f64, DType::f64, DType::f64, DType::f64};
    case Precision::f32:
      return {DType::f32, DType::f32, DType::f32, DType::f32};
    case Precision::problem:
      return {dtype, dtype, dtype, core::type_of_o(p)};
    case Precision::fused:
      return {DType::f32, dtype, DType::f32, DType::f32};
    case Precision::tensor_core:
      return {DType::f32, dtype, DType::f32, DType::f32, &kTensorCore16};
    case Precision::tensor_core_8:
      return {DType::f32, DType::f32, DType::f32, DType::f32, &kTensorCore8, true};
  }
  return {DType::f64, DType::f64, DType::f64, DType::f64};
}

// Row i of a query head beside a key of its sequence.
inline expr::Point point_of(const core::Sequence& sequence, std::int64_t head, std::int64_t i,
                            std::int64_t key, double score) {
  return {.score = score,
          .query = static_cast<std::int32_t>(i),
          .key = static_cast<std::int32_t>(key),
          .batch = sequence.batch,
          .head = static_cast<std::int32_t>(head),
          .seqlen_q = sequence.length_q,
          .seqlen_k = sequence.length_k};
}

inline bool in_mask(const Problem& problem, const Inputs& inputs, const expr::Point& at) {
  return problem.mask.empty() || expr::evaluate<float>(problem.mask, at, inputs.buffers) != 0;
}

template <class Real>
struct Head {
  const Problem& problem;
  const Inputs& inputs;
  const core::Sequence& sequence;
  Rounding rounding;
  Order order;
  std::int64_t head;
  Matrix<Real> q, k, v;
  Matrix<Real> k_transposed;  // [head_dim, keys]: scores of a row add up key beside key
  Dropout dropped;            // with its seed and offset
  DropoutPlaces places;
  const VisibleKeys* visible_keys;   // or null
  std::vector<std::int64_t> listed;  // the key of each entry of a row's list, or -1

  // With lists of keys, gather() a row's before it is looked at.
  Head(const Problem& p, const Inputs& in, const core::Sequence& s, Rounding round_to, Order o,
       const DropoutPlaces& at, const VisibleKeys* seen, std::int64_t h)
      : problem(p),
        inputs(in),
        sequence(s),
        rounding(round_to),
        order(o),
        head(h),
        q(load_matrix<Real>(rows_of_q(), h, s.length_q, p.head_dim)),
        k(load_matrix<Real>(rows_of_k(), head_k(), p.key_list > 0 ? 0 : s.length_k, p.head_dim)),
        v(load_matrix<Real>(rows_of_v(), head_k(), p.key_list > 0 ? 0 : s.length_k, p.head_dim_v)),
        k_transposed(transposed(k)),
        dropped(core::with_state(p.dropout, in.rng_state)),
        places(at),
        visible_keys(seen) {}

  // Where the problem has lists, k and v become the rows of the list of query i: its entries are
  // the keys then, those that stand for nothing not visible.
  void gather(std::int64_t i) {
    if (problem.key_list == 0) return;
    const core::KeyList list = core::key_list(problem, inputs, sequence, i, head_k());
    listed.clear();
    for (std::int64_t j = 0; j < list.count; ++j) listed.push_back(list.key(j));
    k = load_rows<Real>(rows_of_k(), head_k(), listed, problem.head_dim);
    v = load_rows<Real>(rows_of_v(), head_k(), listed, problem.head_dim_v);
    k_transposed = transposed(k);
  }

  CachedRows rows_of_q() const {
    return {sequence.q, core::type_of_q(problem),
            core::Scales::of_q(problem, inputs, sequence.batch), rounding.operands};
  }
  CachedRows rows_of_k() const {
    return {sequence.k, core::type_of_k(problem),
            core::Scales(problem, inputs, inputs.scale_k, sequence.batch), rounding.operands};
  }
  CachedRows rows_of_v() const {
    return {sequence.v, core::type_of_v(problem),
            core::Scales(problem, inputs, inputs.scale_v, sequence.batch), rounding.operands};
  }
  std::int64_t head_k() const { return head / (problem.heads_q / problem.heads_k); }
  std::int64_t keys() const { return k.rows; }
  // The own index of the j-th key.
  std::int64_t key(std::int64_t j) const {
    return problem.key_list > 0 ? listed[static_cast<std::size_t>(j)] : j;
  }
  Real sink() const {
    return problem.sink ? static_cast<Real>(static_cast<const float*>(inputs.sink.data)[head])
                        : -std::numeric_limits<Real>::infinity();
  }
  expr::Point point(std::int64_t i, std::int64_t j, Real score) const {
    return point_of(sequence, head, i, key(j), static_cast<double>(score));
  }
  bool visible(std::int64_t i, std::int64_t j) const {
    if (visible_keys != nullptr && visible_keys->given()) {
      return visible_keys->at(sequence.batch, head, i, j);
    }
    return key(j) >= 0 && in_mask(problem, inputs, point(i, j, 0));
  }
  // The dropout factor Z of (i, j).
  Real dropout(std::int64_t i, std::int64_t j) const {
    const std::uint32_t threshold = core::dropout_threshold(dropped.probability);
    if (threshold == 0) return 1;
    const auto batch_head =
        static_cast<std::uint32_t>(places.first_head + sequence.batch * problem.heads_q + head);
    return core::dropout_keep(dropped.seed, dropped.offset, threshold, batch_head,
                              place(places.query, i), place(places.key, j))
               ? static_cast<Real>(core::dropout_scale(threshold))
               : Real{0};
  }
  static std::uint32_t place(std::span<const std::int32_t> of, std::int64_t i) {
    return static_cast<std::uint32_t>(of.empty() ? i : of[static_cast<std::size_t>(i)]);
  }
};

template <class Real>
struct Row {
  std::vector<Real> s;  // softmax_scale * q.k
  std::vector<Real> t;  // after the score expression; -inf where not visible
  Real max = 0;         // of t and the sink
  Real sum = 0;         // of exp(t - max), the sink's included
  Real lse = 0;
};

// A score is a float on every backend, past whose range it is infinite; in f64 problems a double.
template <class Real>
Real as_score(Real t, DType dtype) {
  constexpr Real kLargest = std::numeric_limits<float>::max();
  if (dtype == DType::f64 || !(std::abs(t) > kLargest)) return t;
  return std::copysign(std::numeric_limits<Real>::infinity(), t);
}

// An expression in the arithmetic of Real, but in double for long double.
template <class Real>
Real value_of(const expr::Expr& e, const expr::Point& at, const expr::Bindings& buffers) {
  using Scalar = std::conditional_t<std::is_same_v<Real, float>, float, double>;
  return expr::evaluate<Scalar>(e, at, buffers);
}

// From here on the float of LSE says little of how many keys a row has (is_far).
inline constexpr double kFarLse = 0x1p20;

// exp(t - max).
template <class Real>
Real weight(const Rounding& rounding, Real t, Real max) {
  if (rounding.tensor_core == nullptr) return std::exp(t - max);
  const auto log2e = static_cast<Real>(std::numbers::log2e);
  if (std::abs(max) >= kFarLse) return std::exp2((t - max) * log2e);
  return std::exp2(std::fma(t, log2e, -(max * log2e)));
}

// tensor_core: that adds q.k, or null.
template <class Real>
Row<Real> score_row(const Head<Real>& head, std::int64_t i, Order order,
                    const TensorCore* tensor_core) {
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  const Problem& problem = head.problem;
  const std::int64_t n = head.keys();
  Row<Real> row;
  row.s.resize(static_cast<std::size_t>(n));
  const auto scale = static_cast<Real>(problem.scale());
  const Real scale_q = order.scale_q ? scale : Real{1};
  const Real scale_s = order.scale_q ? Real{1} : scale;
  ProductSum<Real> sum(row.s.data(), n, tensor_core);
  for (std::int64_t step = 0; step < problem.head_dim; ++step) {
    const std::int64_t c = order.at(step, problem.head_dim);
    sum.add(scale_q * head.q[i][c], head.k_transposed[c]);
  }
  sum.finish();
  for (Real& s : row.s) s = rounded(scale_s * s, head.rounding.scores);

  row.t = row.s;
  row.max = head.sink();
  bool empty = true;
  for (std::int64_t j = 0; j < n; ++j) {
    Real& t = row.t[static_cast<std::size_t>(j)];
    if (!head.visible(i, j)) {
      t = -kInfinity;
    } else if (!problem.score.empty()) {
      t = rounded(value_of<Real>(problem.score, head.point(i, j, t), head.inputs.buffers),
                  head.rounding.scores);
      t = as_score(t, problem.dtype);
    }
    if (t > row.max || std::isnan(t)) row.max = t;
    empty = empty && t == -kInfinity;
  }
  if (empty) {
    row.lse = head.sink();
    return row;
  }
  row.sum = weight(head.rounding, head.sink(), row.max);
  for (std::int64_t step = 0; step < n; ++step) {
    row.sum += weight(head.rounding, row.t[static_cast<std::size_t>(order.at(step, n))], row.max);
  }
  row.lse = row.max + std::log(row.sum);
  return row;
}

// The row sees keys, its LSE says little of how many, and P of the backward pass is divided by its
// sum. Kernels with tensor cores divide where a score expression may add that much alone: of q.k by
// itself they take exp(t - LSE) in any row (docs/numerics.md, "Extremes").
template <class Real>
bool is_far(const Head<Real>& head, const Row<Real>& row) {
  if (head.rounding.tensor_core != nullptr && head.problem.score.empty()) return false;
  return std::isfinite(row.lse) && std::abs(row.lse) >= kFarLse && row.sum > 0;
}

// P of a row two ways that differ in rounding alone: from maximum and sum, as softmax is computed
// forward (with tensor cores not divided by the sum yet, as 8-bit floats times kPScale), and from
// LSE, which is all that backward has of it. The former stands for both where LSE is far from 0: of
// keys with -1e30 added it does not say how many they are (docs/numerics.md, "Extremes").
inline double e4m3(double x) {
  return core::float8_value(core::float8_bits(x, Float8::e4m3), Float8::e4m3);
}
template <class Real>
std::vector<Real> softmax_of_row(const Head<Real>& head, const Row<Real>& row) {
  std::vector<Real> p(row.t.size());
  for (std::size_t j = 0; j < p.size(); ++j) {
    if (std::isinf(row.t[j]) && row.t[j] < 0) continue;
    const Real w = weight(head.rounding, row.t[j], row.max);
    if (head.rounding.e4m3) {
      p[j] = static_cast<Real>(e4m3(kPScale * static_cast<double>(w)));
      continue;
    }
    p[j] = rounded(head.rounding.tensor_core != nullptr ? w : w / row.sum, head.rounding.operands);
  }
  return p;
}
template <class Real>
std::vector<Real> softmax_from_lse(const Head<Real>& head, const Row<Real>& row) {
  std::vector<Real> p(row.t.size());
  for (std::size_t j = 0; j < p.size(); ++j) {
    if (std::isinf(row.t[j]) && row.t[j] < 0) continue;
    const Real weight =
        is_far(head, row) ? std::exp(row.t[j] - row.max) / row.sum : std::exp(row.t[j] - row.lse);
    p[j] = rounded(weight, head.rounding.scores);
  }
  return p;
}

}  // namespace attn::reference
