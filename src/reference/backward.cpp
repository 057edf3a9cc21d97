// The gradients of standard attention by their definition (docs/numerics.md, "Backward"), in fp64
// or in the precision of a yardstick.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "core/problem/rows.hpp"
#include "reference/loaded_elements.hpp"
#include "reference/matrix.hpp"
#include "reference/probabilities.hpp"
#include "reference/product_sum.hpp"
#include "reference/reference.hpp"

namespace attn::reference {
namespace {

// Gradient of one named buffer of the score, summed in Real.
template <class Real>
struct BufferGradient {
  LoadedElements elements;
  std::vector<Real> sum;

  BufferGradient(const Problem& problem, const std::string& name, const Tensor& tensor)
      : elements(problem, name, tensor), sum(static_cast<std::size_t>(tensor.size())) {}

  // d_t: gradient of the changed score at this point.
  void add(Real d_t, const expr::Point& at, const expr::Bindings& buffers) {
    elements.visit(at, buffers, [&](std::size_t element, std::size_t load) {
      const expr::Expr& factor = elements.loads()[load].derivative;
      sum[element] += d_t * value_of<Real>(factor, at, buffers);
    });
  }
};

template <class Real>
class Backward {
 public:
  Backward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
           const OutputGradients& d_outputs, const Gradients& gradients, Rounding rounding,
           Order order, const DropoutPlaces& places, const VisibleKeys* visible)
      : problem_(problem),
        inputs_(inputs),
        outputs_(outputs),
        d_outputs_(d_outputs),
        gradients_(gradients),
        rounding_(rounding),
        order_(order),
        places_(places),
        visible_(visible),
        d_sink_(static_cast<std::size_t>(problem.heads_q)) {
    if (!problem.score.empty()) d_score_ = expr::derivative(problem.score);
    for (const auto& [name, tensor] : gradients.buffers) {
      d_buffers_.emplace_back(problem, name, tensor);
    }
  }

  void run() {
    const std::int64_t group = problem_.heads_q / problem_.heads_k;
    for (std::int64_t batch = 0; batch < core::cleared_sequences(problem_); ++batch) {
      const core::Sequence sequence = core::sequence(problem_, inputs_, batch);
      for (std::int64_t head_k = 0; head_k < problem_.heads_k; ++head_k) {
        KeyGradients sums(*this, sequence.length_k);
        std::vector<QueryHead> heads;
        for (std::int64_t h = head_k * group; h < (head_k + 1) * group; ++h) {
          heads.emplace_back(*this, sequence, h);
          if (!order_.heads_inside) add_heads(heads, sums);
        }
        add_heads(heads, sums);
        store_like_k(sums.dk, gradients_.dk, sequence, head_k);
        store_like_k(sums.dv, gradients_.dv, sequence, head_k);
      }
    }
    const Tensor& dsink = gradients_.dsink;
    for (std::int64_t h = 0; dsink.given() && h < problem_.heads_q; ++h) {
      core::store_element(
          static_cast<std::byte*>(dsink.data) +
              h * dsink.strides[0] * static_cast<std::int64_t>(size_of(dsink.dtype)),
          dsink.dtype, static_cast<double>(d_sink_[static_cast<std::size_t>(h)]));
    }
    for (const BufferGradient<Real>& gradient : d_buffers_) gradient.elements.store(gradient.sum);
  }

 private:
  // The gradients of one K, V head: matrices, and the sums that become their rows.
  struct KeyGradients {
    Matrix<Real> dk, dv;
    std::vector<ProductSum<Real>> dk_sums, dv_sums;

    KeyGradients(const Backward& b, std::int64_t keys)
        : dk(keys, b.problem_.head_dim),
          dv(keys, b.problem_.head_dim_v),
          dk_sums(b.rows_of(dk)),
          dv_sums(b.rows_of(dv)) {}
    KeyGradients(const KeyGradients&) = delete;
    KeyGradients& operator=(const KeyGradients&) = delete;

    void finish() {
      for (ProductSum<Real>& sum : dk_sums) sum.finish();
      for (ProductSum<Real>& sum : dv_sums) sum.finish();
    }
  };

  struct QueryHead {
    Head<Real> head;
    Matrix<Real> d_o, o, v_transposed, dq;  // o: without rows where it is not given

    QueryHead(const Backward& b, const core::Sequence& sequence, std::int64_t h)
        : head(b.problem_, b.inputs_, sequence, b.rounding_, b.order_, b.places_, b.visible_, h),
          d_o(load_matrix<Real>(
              core::rows_like_q(b.problem_, b.inputs_, b.d_outputs_.o, sequence.batch),
              b.d_outputs_.o.dtype, h, sequence.length_q, b.problem_.head_dim_v)),
          o(b.outputs_.o.given()
                ? load_matrix<Real>(
                      core::rows_like_q(b.problem_, b.inputs_, b.outputs_.o, sequence.batch),
                      b.outputs_.o.dtype, h, sequence.length_q, b.problem_.head_dim_v)
                : Matrix<Real>(0, 0)),
          v_transposed(transposed(head.v)),
          dq(sequence.length_q, b.problem_.head_dim) {}
  };

  // Adds the query heads, row after row: of each row all of these heads, which are done with then.
  void add_heads(std::vector<QueryHead>& heads, KeyGradients& sums) {
    if (heads.empty()) return;
    const core::Sequence& sequence = heads.front().head.sequence;
    for (std::int64_t turn = 0; turn < sequence.length_q; ++turn) {
      for (QueryHead& head : heads) add_row(head, order_.at(turn, sequence.length_q), sums);
    }
    sums.finish();
    for (const QueryHead& head : heads) {
      if (!gradients_.dq.given()) break;
      store_matrix(head.dq, core::rows_like_q(problem_, inputs_, gradients_.dq, sequence.batch),
                   gradients_.dq.dtype, head.head.head, sequence.capacity_q);
    }
    heads.clear();
  }

  // With T = score_expression(S):
  //   dV_j += Z_ij P_ij dO_i             dP_ij = Z_ij dO_i . v_j      D_i = dO_i . O_i - dLSE_i
  //   dT_ij = P_ij (dP_ij - D_i)         dsink -= P_sink D_i          dS_ij = dT_ij dT/dS
  //   dQ_i = scale sum_j dS_ij k_j       dK_j += scale dS_ij q_i
  // D adds from the last element on: with few keys dP and D cancel, and as a yardstick for
  // implementations that add in orders of their own the two must not share their rounding errors.
  void add_row(QueryHead& query_head, std::int64_t i, KeyGradients& sums) {
    if (problem_.key_list > 0) {
      query_head.head.gather(i);
      query_head.v_transposed = transposed(query_head.head.v);
    }
    const Head<Real>& head = query_head.head;
    const Matrix<Real>& d_o = query_head.d_o;
    const std::int64_t n = head.keys();
    const auto scale = static_cast<Real>(problem_.scale());
    const Row<Real> row = row_to_differentiate(head, i);
    const std::vector<Real> probabilities = softmax_from_lse(head, row);
    std::vector<Real> dp(static_cast<std::size_t>(n));
    ProductSum<Real> dp_sum(dp.data(), n, rounding_.tensor_core);
    for (std::int64_t step = 0; step < problem_.head_dim_v; ++step) {
      const std::int64_t c = order_.at(step, problem_.head_dim_v);
      dp_sum.add(d_o[i][c], query_head.v_transposed[c]);
    }
    dp_sum.finish();
    std::vector<Real> o(static_cast<std::size_t>(problem_.head_dim_v));
    ProductSum<Real> o_sum(o.data(), problem_.head_dim_v, rounding_.tensor_core);
    for (std::int64_t step = 0; step < n; ++step) {
      const std::int64_t j = order_.at(step, n);
      const Real p = probabilities[static_cast<std::size_t>(j)];
      if (p == 0) continue;  // a key that is not seen gets no gradient, be its value NaN
      const Real z = head.dropout(i, j);
      Real& dp_j = dp[static_cast<std::size_t>(j)];
      dp_j = rounded(z * dp_j, rounding_.scores);
      const Real zp = rounded(z * rounded(p, rounding_.operands), rounding_.dropped);
      o_sum.add(zp, head.v[j]);
      sums.dv_sums[static_cast<std::size_t>(head.key(j))].add(zp, d_o[i]);
    }
    o_sum.finish();
    Real d = 0;
    for (std::int64_t c = problem_.head_dim_v; c-- > 0;) {
      const Real own = rounded(o[static_cast<std::size_t>(c)], rounding_.operands);
      d += d_o[i][c] * (outputs_.o.given() ? query_head.o[i][c] : own);
    }
    d -= of_row(d_outputs_.lse, head, i);
    if (problem_.sink && row.lse != -std::numeric_limits<Real>::infinity()) {
      // A row without keys has P_sink = 1, be the sink infinite or NaN.
      const bool all = row.lse == head.sink() || std::isnan(head.sink());
      d_sink_[static_cast<std::size_t>(head.head)] -=
          (is_far(head, row) ? std::exp(head.sink() - row.max) / row.sum
           : all             ? 1
                             : std::exp(head.sink() - row.lse)) *
          d;
    }
    ProductSum<Real> dq_sum(query_head.dq[i], problem_.head_dim, rounding_.tensor_core);
    for (std::int64_t step = 0; step < n; ++step) {
      const std::int64_t j = order_.at(step, n);
      const Real p = probabilities[static_cast<std::size_t>(j)];
      if (p == 0) continue;
      const Real d_t = p * (dp[static_cast<std::size_t>(j)] - d);
      const Real d_s = scale * rounded(through_score(d_t, head, i, j, row), rounding_.operands);
      dq_sum.add(d_s, head.k[j]);
      sums.dk_sums[static_cast<std::size_t>(head.key(j))].add(d_s, head.q[i]);
    }
    dq_sum.finish();
  }

  std::vector<ProductSum<Real>> rows_of(Matrix<Real>& m) const {
    std::vector<ProductSum<Real>> sums;
    for (std::int64_t i = 0; i < m.rows; ++i) {
      sums.emplace_back(m[i], m.columns, rounding_.tensor_core);
    }
    return sums;
  }

  // Scores and LSE of a row. As a yardstick: LSE comes from a forward pass that added in another
  // order and rounded it, so it may be one unit in the last place off. That pass added as floats
  // do, also where this one adds as tensor cores do: `attn check` gives a GPU the LSE of a CPU,
  // from which scores of -640, 13 times cut towards 0, are 5e-4 away.
  static Row<Real> recomputed_row(const Head<Real>& head, std::int64_t i) {
    Row<Real> row = score_row(head, i, head.order, nullptr);
    if constexpr (std::is_same_v<Real, float>) {
      const float lse = std::nextafter(row.lse, std::numeric_limits<float>::max());
      Order other = head.order;
      other.turn = (other.turn + 4) % 8;
      row = score_row(head, i, other, head.rounding.tensor_core);
      if (std::isfinite(row.lse)) row.lse = lse;
    }
    return row;
  }

  // With the LSE that was given, where one was.
  Row<Real> row_to_differentiate(const Head<Real>& head, std::int64_t i) const {
    Row<Real> row = recomputed_row(head, i);
    if (!outputs_.lse.given()) return row;
    row.lse = of_row(outputs_.lse, head, i);
    if (row.lse == -std::numeric_limits<Real>::infinity()) {
      std::fill(row.t.begin(), row.t.end(), row.lse);  // a row that sees no key
    }
    if (!is_far(head, row)) {
      for (Real& t : row.t) t = std::min(t, row.lse);  // P is 1 at most
    }
    return row;
  }

  // What a tensor laid out as LSE says of a row; 0 where it is not given.
  Real of_row(const Tensor& like_lse, const Head<Real>& head, std::int64_t i) const {
    if (!like_lse.given()) return 0;
    const core::LseRow row =
        core::lse_row(problem_, inputs_, like_lse, head.sequence.batch, head.head);
    return static_cast<Real>(core::load_element(row.base + i * row.stride, like_lse.dtype));
  }

  // dS from dT; on the way, the gradients of the buffers.
  Real through_score(Real d_t, const Head<Real>& head, std::int64_t i, std::int64_t j,
                     const Row<Real>& row) {
    if (problem_.score.empty()) return d_t;
    const expr::Point at = head.point(i, j, row.s[static_cast<std::size_t>(j)]);
    for (BufferGradient<Real>& gradient : d_buffers_) gradient.add(d_t, at, inputs_.buffers);
    return d_t * value_of<Real>(d_score_, at, inputs_.buffers);
  }

  void store_like_k(const Matrix<Real>& gradient, const Tensor& to, const core::Sequence& sequence,
                    std::int64_t head_k) const {
    if (!to.given()) return;
    store_matrix(gradient, core::rows_like_k(problem_, inputs_, to, sequence.batch), to.dtype,
                 head_k, sequence.capacity_k);
  }

  const Problem& problem_;
  const Inputs& inputs_;
  const Outputs& outputs_;
  const OutputGradients& d_outputs_;
  const Gradients& gradients_;
  Rounding rounding_;
  Order order_;
  DropoutPlaces places_;
  const VisibleKeys* visible_;
  expr::Expr d_score_;
  std::vector<Real> d_sink_;
  std::vector<BufferGradient<Real>> d_buffers_;
};

}  // namespace

void backward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
              const OutputGradients& d_outputs, const Gradients& gradients, Precision precision,
              Order order, const DropoutPlaces& places, const VisibleKeys* visible) {
  if (precision == Precision::f64 && problem.dtype == DType::f64) {
    Backward<long double>(problem, inputs, outputs, d_outputs, gradients,
                          rounding(precision, problem), order, places, visible)
        .run();
  } else if (precision == Precision::f64 || problem.dtype == DType::f64) {
    Backward<double>(problem, inputs, outputs, d_outputs, gradients,
                     rounding(Precision::f64, problem), order, places, visible)
        .run();
  } else {
    Backward<float>(problem, inputs, outputs, d_outputs, gradients, rounding(precision, problem),
                    order, places, visible)
        .run();
  }
}

}  // namespace attn::reference
