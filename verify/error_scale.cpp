#include "verify/error_scale.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/problem/rows.hpp"
#include "reference/loaded_elements.hpp"
#include "reference/matrix.hpp"
#include "reference/probabilities.hpp"
#include "reference/reference.hpp"
#include "verify/compare.hpp"
#include "verify/rounded_expression.hpp"
#include "verify/square.hpp"
#include "verify/sum_over_rows.hpp"

namespace attn::verify {
namespace {

using reference::DropoutPlaces;
using reference::Head;
using reference::Matrix;
using reference::Row;
using reference::VisibleKeys;

// Below it the errors of a term are no longer relative to it. f16: where its precision begins to
// fall. Otherwise 2^24 times that of float, so that one unit in the last place of float of it is
// what float loses.
double smallest_term(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-14;
    case DType::f64:
      return 0x1p-1022 * 0x1p53;
    case DType::f32:
    case DType::bf16:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  return 0x1p-126 * 0x1p24;
}

// A rounding to float, of one to the type of the problem.
double float_share(DType dtype) {
  return half_ulp(dtype == DType::f64 ? DType::f64 : DType::f32, 1) / half_ulp(dtype, 1);
}

bool hidden(double t) { return std::isinf(t) && t < 0; }

Head<double> head_of(const Problem& problem, const Inputs& inputs, const core::Sequence& sequence,
                     const DropoutPlaces& places, const VisibleKeys* visible, std::int64_t h) {
  const reference::Rounding exact = reference::rounding(reference::Precision::f64, problem);
  return {problem, inputs, sequence, exact, {}, places, visible, h};
}

void root_all(Matrix<double>& squares) {
  for (double& x : squares.data) x = std::sqrt(x);
}

// The square of what each S_j of a row is off by: its own rounding, and those of the partial sums
// of q.k_j, which may be far larger than S_j, and no less than those of its products. Errors of
// many sums are evenly spread over half a unit and partly cancel: they count half. Example: 64
// products of 1 and -1 in turn have partial sums of 1 and 0 and count 64; 64 of 1 have sums of 1 to
// 64, and half the root of the sum of their squares is 150.
std::vector<double> product_squares(const Head<double>& head, std::int64_t i,
                                    const Row<double>& row) {
  const std::size_t n = row.s.size();
  std::vector<double> products(n), sum(n), sums(n);
  for (std::int64_t c = 0; c < head.problem.head_dim; ++c) {
    const double q = head.q[i][c];
    const double* const k = head.k_transposed[c];
    for (std::size_t j = 0; j < n; ++j) {
      const double product = q * k[j];
      sum[j] += product;
      products[j] += square(product);
      sums[j] += square(sum[j]);
    }
  }
  const double square_of_scale = square(head.problem.scale());
  for (std::size_t j = 0; j < n; ++j) {
    products[j] = square_of_scale * std::max(products[j], sums[j] / 4) + square(row.s[j]);
  }
  return products;
}

// The square of what an expression is off by, without its own rounding: as its operations are
// rounded, and as S is off, however steep the expression where S has no error.
double formula_square(const RoundedExpression::Result& formula, double products) {
  return formula.square + (products == 0 ? 0 : square(formula.slope) * products);
}

// Squares of errors, in units of a rounding.
struct ScoreSquares {
  double products = 0;  // of S
  double score = 0;     // of T = f(S)
};

// The squares of the errors of the scores of a row's visible keys. A score is off by its own
// rounding, those of the operations of f, and f' times what S is off by.
std::vector<ScoreSquares> score_squares(const Head<double>& head, std::int64_t i,
                                        const Row<double>& row,
                                        std::optional<RoundedExpression>& score) {
  std::vector<ScoreSquares> out(row.t.size());
  const std::vector<double> products = product_squares(head, i, row);
  for (std::size_t j = 0; j < out.size(); ++j) {
    if (hidden(row.t[j])) continue;
    double of_s = products[j];
    if (score) {
      const expr::Point at = head.point(i, static_cast<std::int64_t>(j), row.s[j]);
      of_s = formula_square(score->at(at, head.inputs.buffers), products[j]);
    }
    out[j] = {products[j], of_s + square(row.t[j])};
  }
  return out;
}

// By how much P of a row whose LSE is far from 0 (reference::is_far) is off, relative to P: as the
// scores are in float, in which -1e30 swallows q.k as it does in double, and -1e9 does what it does
// not do there. Empty where some score may be rounded one way or the other, as S is off: then P may
// be anything.
std::vector<double> far_errors(const Head<double>& head, std::int64_t i, const Row<double>& row,
                               const std::vector<double>& p) {
  constexpr double kOff = 0x1p-20;  // of S
  if (head.problem.score.empty()) return {};
  std::vector<double> t(p.size(), -std::numeric_limits<double>::infinity());
  double largest = head.sink();
  for (std::size_t j = 0; j < p.size(); ++j) {
    if (hidden(row.t[j])) continue;
    const auto score = [&](double s) {
      const expr::Point at = head.point(i, static_cast<std::int64_t>(j), s);
      return reference::value_of<float>(head.problem.score, at, head.inputs.buffers);
    };
    t[j] = score(row.s[j] * (1 - kOff));
    if (t[j] != score(row.s[j] * (1 + kOff))) return {};
    largest = std::max(largest, t[j]);
  }
  double sum = std::exp(head.sink() - largest);
  for (const double x : t) sum += std::exp(x - largest);
  if (!std::isfinite(largest) || !std::isfinite(sum)) return {};  // floats end sooner than doubles
  std::vector<double> errors(p.size());
  for (std::size_t j = 0; j < p.size(); ++j) {
    if (p[j] != 0) errors[j] = std::abs(std::exp(t[j] - largest) / sum / p[j] - 1);
  }
  return errors;
}

// LSE moves by sum_j P_j dT_j.
double lse_scale(const Row<double>& row, const std::vector<double>& p,
                 const std::vector<ScoreSquares>& squares) {
  if (!std::isfinite(row.lse)) return 0;
  double sum = 1 + square(row.lse);
  for (std::size_t j = 0; j < p.size(); ++j) {
    if (p[j] != 0) sum += p[j] * squares[j].score;
  }
  return std::sqrt(sum);
}

class Backward {
 public:
  Backward(const Problem& problem, const Inputs& inputs, const OutputGradients& d_outputs,
           const Gradients& scales, const DropoutPlaces& places, const VisibleKeys* visible)
      : problem_(problem),
        inputs_(inputs),
        d_outputs_(d_outputs),
        scales_(scales),
        places_(places),
        visible_(visible),
        float_share_(float_share(problem.dtype)),
        d_sink_(static_cast<std::size_t>(problem.heads_q)) {
    if (!problem.score.empty()) {
      score_.emplace(problem.score);
      d_score_.emplace(expr::derivative(problem.score));
    }
    for (const auto& [name, tensor] : scales.buffers)
      d_buffers_.emplace_back(problem, name, tensor);
  }

  void run() {
    const std::int64_t group = problem_.heads_q / problem_.heads_k;
    for (std::int64_t batch = 0; batch < problem_.batch; ++batch) {
      const core::Sequence sequence = core::sequence(problem_, inputs_, batch);
      for (std::int64_t head_k = 0; head_k < problem_.heads_k; ++head_k) {
        Sums dk(sequence.length_k, problem_.head_dim);
        Sums dv(sequence.length_k, problem_.head_dim_v);
        for (std::int64_t h = head_k * group; h < (head_k + 1) * group; ++h) {
          query_head(head_of(problem_, inputs_, sequence, places_, visible_, h), dk, dv);
        }
        store_like_k(dk.roots(), scales_.dk, sequence, head_k);
        store_like_k(dv.roots(), scales_.dv, sequence, head_k);
      }
    }
    if (scales_.dsink.given()) {
      const std::vector<double> scales = d_sink_.scales(float_share_);
      for (std::size_t h = 0; h < scales.size(); ++h) {
        const auto offset = static_cast<std::int64_t>(h) * scales_.dsink.strides[0];
        core::store_element(static_cast<std::byte*>(scales_.dsink.data) +
                                offset * static_cast<std::int64_t>(sizeof(double)),
                            DType::f64, scales[h]);
      }
    }
    for (const Buffer& buffer : d_buffers_) {
      buffer.elements.store(buffer.sums.scales(float_share_));
    }
  }

 private:
  // A sum of terms, and of the squares of their largest errors.
  struct Sums {
    Matrix<double> values, squares;
    Sums(std::int64_t rows, std::int64_t columns) : values(rows, columns), squares(rows, columns) {}
    void add(std::int64_t row, double value, double error, const double* x) {
      for (std::int64_t c = 0; c < values.columns; ++c) {
        values[row][c] += value * x[c];
        squares[row][c] += square(error * x[c]);
      }
    }
    Matrix<double> roots() const {
      Matrix<double> out(values.rows, values.columns);
      for (std::size_t e = 0; e < out.data.size(); ++e) {
        out.data[e] = std::sqrt(squares.data[e] + square(values.data[e]));
      }
      return out;
    }
  };

  struct Buffer {
    reference::LoadedElements elements;
    SumOverRows sums;
    std::vector<RoundedExpression> factors;  // derivatives of the score by each load

    Buffer(const Problem& problem, const std::string& name, const Tensor& tensor)
        : elements(problem, name, tensor), sums(static_cast<std::size_t>(tensor.size())) {
      for (const auto& load : elements.loads()) factors.emplace_back(load.derivative);
    }
  };

  // dS_ij = P_ij (dP_ij - D_i) f'_ij is off by P_ij f'_ij times the errors of dP_ij and D_i, which
  // are sums themselves, and by its own relative error, which is that of the score and of LSE for
  // P_ij = exp(T_ij - LSE_i), and that of the operations of f' for f'_ij. Those of D_i and LSE_i
  // are shared by all keys.
  void query_head(Head<double> head, Sums& dk, Sums& dv) {
    const core::Sequence& sequence = head.sequence;
    const double smallest = smallest_term(problem_.dtype);
    const Matrix<double> d_o = reference::load_matrix<double>(
        core::rows_like_q(problem_, inputs_, d_outputs_.o, sequence.batch), d_outputs_.o.dtype,
        head.head, sequence.length_q, problem_.head_dim_v);
    Sums dq(sequence.length_q, problem_.head_dim);
    for (std::int64_t i = 0; i < sequence.length_q; ++i) {
      head.gather(i);
      const Row<double> row = score_row(head, i, {}, nullptr);
      const std::vector<double> p = softmax_of_row(head, row);
      const std::vector<ScoreSquares> squares = score_squares(head, i, row, score_);
      double lse_error = float_share_ * lse_scale(row, p, squares);
      std::vector<double> dp(p.size()), dp_error(p.size()), score_error(p.size()),
          o(static_cast<std::size_t>(problem_.head_dim_v));
      for (std::size_t j = 0; j < p.size(); ++j) {
        score_error[j] = float_share_ * std::sqrt(squares[j].score);
      }
      if (is_far(head, row)) {
        if (std::vector<double> errors = far_errors(head, i, row, p); !errors.empty()) {
          for (double& x : errors) x /= half_ulp(problem_.dtype, 1);
          score_error = std::move(errors);
          lse_error = 0;  // P is divided by its sum
        }
      }
      for (std::size_t j = 0; j < p.size(); ++j) {
        if (hidden(row.t[j])) continue;
        const double* v = head.v[static_cast<std::int64_t>(j)];
        const double z = head.dropout(i, static_cast<std::int64_t>(j));
        double terms = 0;
        for (std::int64_t c = 0; c < problem_.head_dim_v; ++c) {
          dp[j] += z * d_o[i][c] * v[c];
          terms += square(z * d_o[i][c] * v[c]);
          o[static_cast<std::size_t>(c)] += z * p[j] * v[c];
        }
        dp_error[j] = std::sqrt(terms) + std::abs(dp[j]);
        dv.add(head.key(static_cast<std::int64_t>(j)), z * p[j],
               z * (std::max(p[j], smallest) +
                    p[j] * std::sqrt(square(score_error[j]) + square(lse_error))),
               d_o[i]);
      }
      double d = -d_lse(head, i);
      const double d_lse_square = square(d);
      double d_squares = 0;
      for (std::int64_t c = 0; c < problem_.head_dim_v; ++c) {
        d += d_o[i][c] * o[static_cast<std::size_t>(c)];
        // O may lie where f16 has few digits.
        d_squares +=
            square(d_o[i][c] * std::max(std::abs(o[static_cast<std::size_t>(c)]), smallest));
      }
      const double rounded_error = error_of_rounded_d(d_squares, d, p, dp, score_error);
      const double d_error = std::sqrt(square(rounded_error) + d_lse_square) + std::abs(d);
      if (problem_.sink) {
        const double p_sink = std::exp(head.sink() - row.lse);
        d_sink_.add(static_cast<std::size_t>(head.head), -p_sink * d, -p_sink,
                    float_share_ * p_sink * d);
      }
      std::vector<double> shared(static_cast<std::size_t>(problem_.head_dim));
      for (std::size_t j = 0; j < p.size(); ++j) {
        if (hidden(row.t[j])) continue;
        const auto key = static_cast<std::int64_t>(j);
        const double at_least = std::max(p[j], smallest);  // P may be flushed to zero
        const double dt = p[j] * (dp[j] - d);
        double slope = 1, slope_error = 0;
        if (d_score_) {
          const expr::Point at = head.point(i, key, row.s[j]);
          const RoundedExpression::Result f = d_score_->at(at, inputs_.buffers);
          slope = f.value;
          slope_error = float_share_ * std::sqrt(formula_square(f, squares[j].products));
          const double term_error =
              float_share_ * std::max(at_least * (dp_error[j] + d_error), smallest) +
              at_least * std::abs(dp[j] - d) * score_error[j];
          add_to_buffers(at, p[j], dt, term_error, squares[j].products);
        }
        const double s_slope = problem_.scale() * slope;
        const double value = s_slope * dt;
        const double error = std::max(std::abs(s_slope) * at_least * (dp_error[j] + d_error),
                                      std::abs(problem_.scale()) * smallest) +
                             std::abs(problem_.scale() * dt) * slope_error;
        dq.add(i, value, error + std::abs(value) * score_error[j], head.k[key]);
        dk.add(head.key(key), value,
               error + std::abs(value) * std::sqrt(square(score_error[j]) + square(lse_error)),
               head.q[i]);
        for (std::size_t c = 0; c < shared.size(); ++c) {
          shared[c] += s_slope * p[j] * d_error * head.k[key][c];
        }
      }
      d_sink_.end_row(rounded_error, lse_error);
      for (Buffer& buffer : d_buffers_) buffer.sums.end_row(rounded_error, lse_error);
      for (std::size_t c = 0; c < shared.size(); ++c) {
        const auto column = static_cast<std::int64_t>(c);
        dq.squares[i][column] += square(shared[c]) + square(lse_error * dq.values[i][column]);
      }
    }
    if (!scales_.dq.given()) return;
    store_matrix(dq.roots(), core::rows_like_q(problem_, inputs_, scales_.dq, sequence.batch),
                 DType::f64, head.head, sequence.capacity_q);
  }

  // What D loses when O and P are rounded to the type of the problem, in units of that rounding:
  // dO.O may be far smaller than its terms P_j dP_j. In float P also loses as much as its score is
  // off, and D as much as it is large, dLSE included. squares: of the terms of dO.O.
  double error_of_rounded_d(double squares, double d, const std::vector<double>& p,
                            const std::vector<double>& dp,
                            const std::vector<double>& score_error) const {
    const double smallest = smallest_term(problem_.dtype);
    squares += square(float_share_ * d);
    for (std::size_t j = 0; j < p.size(); ++j) {  // dP of a hidden key is 0
      squares += square(dp[j] * std::max(p[j], smallest)) * (1 + square(score_error[j]));
    }
    return std::sqrt(squares);
  }

  // dt: gradient of the changed score at this point, off by `error`. products: as of ScoreSquares.
  void add_to_buffers(const expr::Point& at, double p, double dt, double error, double products) {
    for (Buffer& buffer : d_buffers_) {
      buffer.elements.visit(at, inputs_.buffers, [&](std::size_t element, std::size_t load) {
        const RoundedExpression::Result factor = buffer.factors[load].at(at, inputs_.buffers);
        const double factor_error = float_share_ * std::sqrt(formula_square(factor, products));
        buffer.sums.add(element, dt * factor.value, p * factor.value,
                        error * std::abs(factor.value) + std::abs(dt) * factor_error);
      });
    }
  }

  double d_lse(const Head<double>& head, std::int64_t i) const {
    const Tensor& t = d_outputs_.lse;
    if (!t.given()) return 0;
    const core::LseRow row = core::lse_row(problem_, inputs_, t, head.sequence.batch, head.head);
    return core::load_element(row.base + i * row.stride, t.dtype);
  }

  void store_like_k(const Matrix<double>& from, const Tensor& to, const core::Sequence& sequence,
                    std::int64_t head_k) const {
    if (!to.given()) return;
    store_matrix(from, core::rows_like_k(problem_, inputs_, to, sequence.batch), DType::f64, head_k,
                 sequence.capacity_k);
  }

  const Problem& problem_;
  const Inputs& inputs_;
  const OutputGradients& d_outputs_;
  const Gradients& scales_;
  DropoutPlaces places_;
  const VisibleKeys* visible_;
  double float_share_;
  std::optional<RoundedExpression> score_, d_score_;
  SumOverRows d_sink_;
  std::vector<Buffer> d_buffers_;
};

// O moves by sum_j P_j (Z_j V_j - O) dT_j, far more than its terms are rounded by where scores are
// large and cancel: of one key next to none, of two by half the difference of their values. Only
// where few keys have the weight of a row, by 1 / sum_j P_j^2: in sums over many the errors of
// scores, each of which counts as the largest that it may be, cancel.
void add_errors_of_scores(const Head<double>& head, std::int64_t i, const Row<double>& row,
                          const std::vector<double>& p, const std::vector<double>& o,
                          const std::vector<ScoreSquares>& of_scores, double* squares) {
  constexpr double kFewKeys = 16;
  double weight = 0;
  for (const double x : p) weight += square(x);
  if (weight * kFewKeys < 1 || is_far(head, row)) return;
  const double share = float_share(head.problem.dtype);
  for (std::size_t j = 0; j < p.size(); ++j) {
    if (hidden(row.t[j])) continue;
    const auto key = static_cast<std::int64_t>(j);
    const double moved = square(p[j] * share) * of_scores[j].score;
    const double z = head.dropout(i, key);
    for (std::size_t c = 0; c < o.size(); ++c) {
      squares[c] += moved * square(z * head.v[key][static_cast<std::int64_t>(c)] - o[c]);
    }
  }
}

}  // namespace

void forward_error_scales(const Problem& problem, const Inputs& inputs, const Outputs& scales,
                          const DropoutPlaces& places, const VisibleKeys* visible) {
  const double smallest = smallest_term(problem.dtype);
  std::optional<RoundedExpression> score;
  if (!problem.score.empty()) score.emplace(problem.score);
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    const core::Sequence sequence = core::sequence(problem, inputs, batch);
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      Head<double> head = head_of(problem, inputs, sequence, places, visible, h);
      core::LseRow lse{};
      if (scales.lse.given()) lse = core::lse_row(problem, inputs, scales.lse, batch, h);
      Matrix<double> squares(sequence.length_q, problem.head_dim_v);
      for (std::int64_t i = 0; lse.base != nullptr && i < sequence.capacity_q; ++i) {
        core::store_element(lse.base + i * lse.stride, DType::f64, 0);
      }
      for (std::int64_t i = 0; i < sequence.length_q; ++i) {
        head.gather(i);
        const Row<double> row = score_row(head, i, {}, nullptr);
        const std::vector<double> p = softmax_of_row(head, row);
        const std::vector<ScoreSquares> of_scores = score_squares(head, i, row, score);
        if (lse.base != nullptr) {
          core::store_element(lse.base + i * lse.stride, DType::f64, lse_scale(row, p, of_scores));
        }
        std::vector<double> o(static_cast<std::size_t>(problem.head_dim_v));
        for (std::size_t j = 0; j < p.size(); ++j) {
          if (hidden(row.t[j])) continue;
          const auto key = static_cast<std::int64_t>(j);
          const double z = head.dropout(i, key);
          for (std::size_t c = 0; c < o.size(); ++c) {
            const double v = head.v[key][static_cast<std::int64_t>(c)];
            o[c] += z * p[j] * v;
            squares[i][static_cast<std::int64_t>(c)] += square(z * std::max(p[j], smallest) * v);
          }
        }
        for (std::size_t c = 0; c < o.size(); ++c) {
          squares[i][static_cast<std::int64_t>(c)] += square(o[c]);
        }
        add_errors_of_scores(head, i, row, p, o, of_scores, squares[i]);
      }
      root_all(squares);
      store_matrix(squares, core::rows_like_q(problem, inputs, scales.o, batch), DType::f64, h,
                   sequence.capacity_q);
    }
  }
}

void backward_error_scales(const Problem& problem, const Inputs& inputs,
                           const OutputGradients& d_outputs, const Gradients& scales,
                           const DropoutPlaces& places, const VisibleKeys* visible) {
  Backward(problem, inputs, d_outputs, scales, places, visible).run();
}

}  // namespace attn::verify
