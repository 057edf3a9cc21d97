// Kernel regression (Nadaraya and Watson, 1964) by attention: with the Gaussian kernel
// K(q, k) = exp(-|q - k|^2 / 2 h^2) the estimate at q_i from samples (k_j, v_j) is
//   normalised  sum_j K(q_i, k_j) v_j / sum_j K(q_i, k_j) = O_i
//   plain       sum_j K(q_i, k_j) v_j = exp(LSE_i) O_i
// where score(i, j) = q_i.k_j / h^2 - |q_i|^2 / 2 h^2 - |k_j|^2 / 2 h^2: the dot product of
// attention with scale 1 / h^2, and two buffers. No matrix of n x n distances is ever made. Both
// estimates and their gradients are compared with sums in fp64.
#include <algorithm>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kQueries = 500, kSamples = 700, kDim = 3, kOut = 2;
constexpr double kBandwidth = 0.4;
constexpr float kInverse = float(1 / (kBandwidth * kBandwidth));  // 1 / h^2

using Values = std::vector<float>;
using Exact = std::vector<double>;

attn::Tensor rows(Values& x, std::int64_t width) {  // one sequence of one head
  return attn::tensor(x.data(), {1, std::int64_t(x.size()) / width, 1, width});
}

// |x|^2 / 2 h^2 of each row.
Values half_squares(const Values& x) {
  Values result(x.size() / kDim);
  for (std::size_t i = 0; i < x.size(); ++i) {
    result[i / kDim] += float(0.5 * kInverse * double{x[i]} * double{x[i]});
  }
  return result;
}

struct Estimate {
  Exact o, plain;                    // [query][kOut]
  Exact dq, dk, plain_dq, plain_dk;  // of sum(w * estimate)
};

// The definition, in fp64.
Estimate direct(const Values& q, const Values& k, const Values& v, const Values& w) {
  Estimate e{Exact(kQueries * kOut), Exact(kQueries * kOut), Exact(kQueries * kDim),
             Exact(kSamples * kDim), Exact(kQueries * kDim), Exact(kSamples * kDim)};
  for (std::int64_t i = 0; i < kQueries; ++i) {
    Exact kernel(kSamples);
    double sum = 0;
    for (std::int64_t j = 0; j < kSamples; ++j) {
      double square = 0;
      for (int c = 0; c < kDim; ++c) {
        const double difference = double{q[i * kDim + c]} - k[j * kDim + c];
        square += difference * difference;
      }
      kernel[j] = std::exp(-0.5 * kInverse * square);
      sum += kernel[j];
      for (int c = 0; c < kOut; ++c) e.plain[i * kOut + c] += kernel[j] * v[j * kOut + c];
    }
    double mean = 0;  // of w . v, under the normalised weights
    for (int c = 0; c < kOut; ++c) {
      e.o[i * kOut + c] = e.plain[i * kOut + c] / sum;
      mean += w[i * kOut + c] * e.o[i * kOut + c];
    }
    for (std::int64_t j = 0; j < kSamples; ++j) {
      double value = 0;
      for (int c = 0; c < kOut; ++c) value += double{w[i * kOut + c]} * v[j * kOut + c];
      for (int c = 0; c < kDim; ++c) {  // d kernel / d q = -kernel (q - k) / h^2
        const double slope = -kernel[j] * kInverse * (double{q[i * kDim + c]} - k[j * kDim + c]);
        e.dq[i * kDim + c] += slope * (value - mean) / sum;
        e.dk[j * kDim + c] -= slope * (value - mean) / sum;
        e.plain_dq[i * kDim + c] += slope * value;
        e.plain_dk[j * kDim + c] -= slope * value;
      }
    }
  }
  return e;
}

// Largest difference as a share of the largest number; prints it.
bool close(const char* what, const Values& got, const Exact& expected) {
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(got[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
    if (!std::isfinite(got[i])) error = INFINITY;
  }
  std::printf("%-24s largest difference from fp64: %.2g of the largest number\n", what,
              error / largest);
  // The score is a difference of terms of up to about 60, so f32 knows it to 60 * 2^-24 = 4e-6.
  return error / largest < 2e-5;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t count) {
    Values x(count);
    for (float& value : x) value = normal(random);
    return x;
  };
  Values q = draw(kQueries * kDim), k = draw(kSamples * kDim), v = draw(kSamples * kOut);
  const Values w = draw(kQueries * kOut);  // the loss is sum(w * estimate)
  Values q_square = half_squares(q), k_square = half_squares(k);

  const auto& s = attn::expr::symbols();
  const attn::expr::Buffer of_query("q_square", attn::tensor(q_square.data(), {kQueries}));
  const attn::expr::Buffer of_key("k_square", attn::tensor(k_square.data(), {kSamples}));
  const attn::Problem problem{.softmax_scale = kInverse,
                              .score = s.score - of_query[s.query] - of_key[s.key]};
  const attn::Inputs inputs{.q = rows(q, kDim), .k = rows(k, kDim), .v = rows(v, kOut)};

  Values o(kQueries * kOut, NAN), lse(kQueries, NAN), plain(o);
  const attn::Outputs outputs{.o = rows(o, kOut),
                              .lse = attn::tensor(lse.data(), {1, 1, kQueries})};
  attn::forward(problem, inputs, outputs);
  for (std::size_t i = 0; i < o.size(); ++i) plain[i] = std::exp(lse[i / kOut]) * o[i];

  // Gradients by q and k: through the dot product, and through the squares, whose gradients
  // backward() gives as those of buffers. d (|x|^2 / 2 h^2) / d x = x / h^2.
  Values dq(q.size()), dk(k.size()), d_q_square(kQueries), d_k_square(kSamples);
  const auto gradients = [&](const attn::OutputGradients& d_outputs) {
    for (Values* x : {&dq, &dk, &d_q_square, &d_k_square}) std::fill(x->begin(), x->end(), NAN);
    attn::backward(problem, inputs, outputs, d_outputs,
                   {.dq = rows(dq, kDim),
                    .dk = rows(dk, kDim),
                    .buffers = {{"q_square", attn::tensor(d_q_square.data(), {kQueries})},
                                {"k_square", attn::tensor(d_k_square.data(), {kSamples})}}});
    for (std::size_t i = 0; i < q.size(); ++i) dq[i] += kInverse * d_q_square[i / kDim] * q[i];
    for (std::size_t i = 0; i < k.size(); ++i) dk[i] += kInverse * d_k_square[i / kDim] * k[i];
  };

  const Estimate exact = direct(q, k, v, w);
  bool correct = close("normalised", o, exact.o);
  correct = close("plain", plain, exact.plain) && correct;
  Values d_o = w, d_lse(kQueries);
  gradients(rows(d_o, kOut));
  correct = close("normalised, d / d q", dq, exact.dq) && correct;
  correct = close("normalised, d / d k", dk, exact.dk) && correct;
  // Of exp(LSE) O: by O it is exp(LSE), by LSE the estimate itself.
  for (std::size_t i = 0; i < w.size(); ++i) {
    d_o[i] = w[i] * std::exp(lse[i / kOut]);
    d_lse[i / kOut] += w[i] * plain[i];
  }
  gradients({rows(d_o, kOut), attn::tensor(d_lse.data(), {1, 1, kQueries})});
  correct = close("plain, d / d q", dq, exact.plain_dq) && correct;
  correct = close("plain, d / d k", dk, exact.plain_dk) && correct;
  return correct ? 0 : 1;
}
