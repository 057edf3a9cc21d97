// Standard attention by its definition (docs/numerics.md, "Attention"), row by row, in fp64 or in
// the precision of a yardstick.
#include <limits>
#include <vector>

#include "core/problem/max_logit.hpp"
#include "core/problem/rows.hpp"
#include "reference/matrix.hpp"
#include "reference/probabilities.hpp"
#include "reference/product_sum.hpp"
#include "reference/reference.hpp"

namespace attn::reference {
namespace {

template <class Real>
void forward_head(Head<Real> head, const Outputs& outputs) {
  const Problem& problem = head.problem;
  const core::Sequence& sequence = head.sequence;
  Matrix<Real> o(sequence.length_q, problem.head_dim_v);
  std::vector<double> lse(static_cast<std::size_t>(sequence.capacity_q),
                          -std::numeric_limits<double>::infinity());
  const core::MaxLogit max_logit(outputs.max_logit);
  for (std::int64_t i = 0; i < sequence.length_q; ++i) {
    head.gather(i);
    const Row<Real> row = score_row(head, i, head.order, head.rounding.tensor_core);
    const std::vector<Real> probabilities = softmax_of_row(head, row);
    lse[static_cast<std::size_t>(i)] = static_cast<double>(row.lse);
    for (const Real t : row.t) max_logit.raise(head.head, static_cast<double>(t));
    ProductSum<Real> sum(o[i], o.columns, head.rounding.tensor_core,
                         head.rounding.e4m3 ? kKeysOfPart : 0);
    for (std::int64_t step = 0; step < head.keys(); ++step) {
      const std::int64_t j = head.order.at(step, head.keys());
      const Real p = probabilities[static_cast<std::size_t>(j)];
      if (p == 0) continue;  // a key that is not seen adds nothing, be its value NaN
      sum.add(rounded(p * head.dropout(i, j), head.rounding.dropped), head.v[j]);
    }
    sum.finish();
    if (head.rounding.tensor_core != nullptr && row.sum != 0) {
      const Real sum_of_p = head.rounding.e4m3 ? static_cast<Real>(kPScale) * row.sum : row.sum;
      for (std::int64_t c = 0; c < o.columns; ++c) o[i][c] /= sum_of_p;
    }
    for (std::int64_t c = 0; c < o.columns; ++c) o[i][c] = rounded(o[i][c], head.rounding.output);
  }
  store_matrix(o, core::rows_like_q(problem, head.inputs, outputs.o, sequence.batch),
               outputs.o.dtype, head.head, sequence.capacity_q);
  if (!outputs.lse.given()) return;
  const core::LseRow to =
      core::lse_row(problem, head.inputs, outputs.lse, sequence.batch, head.head);
  for (std::int64_t i = 0; i < sequence.capacity_q; ++i) {
    core::store_element(to.base + i * to.stride, outputs.lse.dtype,
                        lse[static_cast<std::size_t>(i)]);
  }
}

template <class Real>
void forward_as(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                Rounding rounding, Order order, const DropoutPlaces& places,
                const VisibleKeys* visible) {
  core::MaxLogit(outputs.max_logit).clear();
  for (std::int64_t batch = 0; batch < core::cleared_sequences(problem); ++batch) {
    const core::Sequence sequence = core::sequence(problem, inputs, batch);
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      forward_head(Head<Real>(problem, inputs, sequence, rounding, order, places, visible, h),
                   outputs);
    }
  }
}

}  // namespace

VisibleKeys::VisibleKeys(const Problem& problem, const Inputs& inputs)
    : heads_(depends_on(problem.mask, expr::Op::head) ? problem.heads_q : 1) {
  if (problem.mask.empty() || problem.key_list > 0) return;
  for (std::int64_t batch = 0; batch < core::cleared_sequences(problem); ++batch) {
    const core::Sequence sequence = core::sequence(problem, inputs, batch);
    sequences_.push_back({sequence.length_q, sequence.length_k, {}});
    OfSequence& keys = sequences_.back();
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t i = 0; i < keys.rows; ++i) {
        for (std::int64_t j = 0; j < keys.columns; ++j) {
          keys.visible.push_back(in_mask(problem, inputs, point_of(sequence, h, i, j, 0)));
        }
      }
    }
  }
}

void forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
             Precision precision, Order order, const DropoutPlaces& places,
             const VisibleKeys* visible) {
  if (precision == Precision::f64 && problem.dtype == DType::f64) {
    forward_as<long double>(problem, inputs, outputs, rounding(precision, problem), order, places,
                            visible);
  } else if (precision == Precision::f64 || problem.dtype == DType::f64) {
    forward_as<double>(problem, inputs, outputs, rounding(Precision::f64, problem), order, places,
                       visible);
  } else {
    forward_as<float>(problem, inputs, outputs, rounding(precision, problem), order, places,
                      visible);
  }
}

}  // namespace attn::reference
