#include "verify/score_error.hpp"

#include <algorithm>
#include <cmath>

#include "core/problem/rows.hpp"
#include "reference/probabilities.hpp"

namespace attn::verify {
namespace {

using reference::Head;
using reference::Order;
using reference::Precision;

// Exact: the type of the reference; Real: that of the yardstick.
template <class Exact, class Real>
double score_error_as(const Problem& problem, const Inputs& inputs, Precision precision,
                      Order order, const reference::VisibleKeys* visible) {
  const reference::Rounding exact_rounding = reference::rounding(Precision::f64, problem);
  const reference::Rounding rounding = reference::rounding(precision, problem);
  double worst = 0;
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    const core::Sequence sequence = core::sequence(problem, inputs, batch);
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      Head<Exact> exact(problem, inputs, sequence, exact_rounding, {}, {}, visible, h);
      Head<Real> standard(problem, inputs, sequence, rounding, order, {}, visible, h);
      for (std::int64_t i = 0; i < sequence.length_q; ++i) {
        exact.gather(i);
        standard.gather(i);
        const auto want = reference::score_row(exact, i, exact.order, nullptr).t;
        const auto got = reference::score_row(standard, i, order, rounding.tensor_core).t;
        for (std::size_t j = 0; j < want.size(); ++j) {
          const double error = std::abs(static_cast<double>(got[j]) - static_cast<double>(want[j]));
          if (std::isfinite(error)) worst = std::max(worst, error);
        }
      }
    }
  }
  return worst;
}

}  // namespace

double score_error(const Problem& problem, const Inputs& inputs, Precision precision, Order order,
                   const reference::VisibleKeys* visible) {
  if (problem.dtype == DType::f64) {
    return score_error_as<long double, double>(problem, inputs, Precision::f64, order, visible);
  }
  return score_error_as<double, float>(problem, inputs, precision, order, visible);
}

}  // namespace attn::verify
