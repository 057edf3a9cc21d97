#include "explain/sample.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "attn/run.hpp"
#include "core/philox.hpp"

namespace attn::explain {
namespace {

using expr::Expr;
using expr::Op;

constexpr std::int32_t kRows = 12, kKeys = 16;
constexpr std::int64_t kColumns = 4;

// `count` places of [0, length), the first and the last among them.
std::vector<std::int32_t> spread(std::int32_t length, std::int32_t count) {
  std::vector<std::int32_t> places;
  for (std::int64_t i = 0; i < count; ++i) {
    places.push_back(count == 1 ? length - 1
                                : static_cast<std::int32_t>(i * (length - 1) / (count - 1)));
  }
  return places;
}

// Normal random numbers that decimal text of a few digits holds exactly, so that the page computes
// with what the reference had.
std::vector<double> numbers(std::mt19937_64& random, std::size_t count, double factor) {
  std::vector<double> values(count);
  for (double& value : values) {
    // Box and Muller; the standard library's distribution differs between libraries.
    const double u = static_cast<double>((random() >> 11) + 1) * 0x1p-53;
    const double angle = 2 * 3.14159265358979323846 * static_cast<double>(random() >> 11) * 0x1p-53;
    value = std::round(factor * std::sqrt(-2 * std::log(u)) * std::cos(angle) * 256) / 256;
  }
  return values;
}

// JSON lacks infinities and NaN: they are the texts "inf", "-inf" and "nan".
Json list(const std::vector<double>& values) {
  Json result = Json::array();
  for (const double value : values) {
    if (std::isnan(value)) {
      result.push_back("nan");
    } else if (std::isinf(value)) {
      result.push_back(value > 0 ? "inf" : "-inf");
    } else {
      result.push_back(value);
    }
  }
  return result;
}

class Sample {
 public:
  Sample(const Problem& whole, const Scores& scores, std::uint64_t seed)
      : whole_(whole), scores_(scores), random_(seed) {
    const std::int32_t most_keys = scores.seqlen_q == scores.seqlen_k ? kRows : kKeys;
    queries_ = spread(scores.seqlen_q, std::min(scores.seqlen_q, kRows));
    keys_ = spread(scores.seqlen_k, std::min(scores.seqlen_k, most_keys));
    rows_ = static_cast<std::int64_t>(queries_.size());
    columns_ = static_cast<std::int64_t>(keys_.size());
    d_ = std::min(whole.head_dim, kColumns);
    d_v_ = std::min(whole.head_dim_v, kColumns);
    // Scores of a few units, so that the maxima move and the rescaling is seen.
    constexpr double kWide = 1.5;
    q_ = numbers(random_, size(rows_, d_), kWide);
    k_ = numbers(random_, size(columns_, d_), kWide);
    v_ = numbers(random_, size(columns_, d_v_), 1);
    d_o_ = numbers(random_, size(rows_, d_v_), 1);
    values_ = {scores.head, scores.batch, scores.seqlen_q, scores.seqlen_k};
    if (whole.sink) sink_ = static_cast<float>(numbers(random_, 1, 1)[0]);
  }

  Json json() {
    Json result{{"queries", queries_}, {"keys", keys_}, {"d", d_}, {"d_v", d_v_},
                {"scale", scale()},    {"q", q_},       {"k", k_}, {"v", v_},
                {"d_o", d_o_}};
    add_elements(result);
    result["sink"] = whole_.sink ? Json(sink_) : Json(nullptr);
    add_reference(result);
    return result;
  }

 private:
  static std::size_t size(std::int64_t rows, std::int64_t columns) {
    return static_cast<std::size_t>(rows * columns);
  }
  double scale() const {
    return whole_.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(d_)));
  }

  // What mask, score and dropout make of each element.
  void add_elements(Json& result) const {
    std::string visible;
    std::vector<double> scores, slopes, factors;
    const Expr derivative = whole_.score.empty() ? Expr() : expr::derivative(whole_.score);
    const std::uint32_t threshold = core::dropout_threshold(whole_.dropout.probability);
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = 0; j < columns_; ++j) {
        expr::Point at{.query = queries_[static_cast<std::size_t>(i)],
                       .key = keys_[static_cast<std::size_t>(j)],
                       .batch = scores_.batch,
                       .head = scores_.head,
                       .seqlen_q = scores_.seqlen_q,
                       .seqlen_k = scores_.seqlen_k};
        for (std::int64_t c = 0; c < d_; ++c) {
          at.score += q_[size(i, d_) + size(1, c)] * k_[size(j, d_) + size(1, c)];
        }
        at.score *= scale();
        const bool seen =
            whole_.mask.empty() || expr::evaluate<float>(whole_.mask, at, scores_.buffers) != 0;
        visible += seen ? '1' : '0';
        if (!whole_.score.empty()) {
          scores.push_back(expr::evaluate<double>(whole_.score, at, scores_.buffers));
          slopes.push_back(expr::evaluate<double>(derivative, at, scores_.buffers));
        }
        const bool kept =
            core::dropout_keep(whole_.dropout.seed, whole_.dropout.offset, threshold, 0,
                               static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j));
        factors.push_back(kept ? core::dropout_scale(threshold) : 0);
      }
    }
    result["visible"] = visible;
    result["score"] = whole_.score.empty() ? Json(nullptr) : Json(expr::to_string(whole_.score));
    result["scores"] = whole_.score.empty() ? Json(nullptr) : list(scores);
    result["slopes"] = whole_.score.empty() ? Json(nullptr) : list(slopes);
    result["dropout"] = threshold == 0 ? Json(nullptr) : Json(factors);
  }

  // The sample as a problem of its own: symbols become loads of the values that they have in the
  // whole. As constants they would be folded in float32, while the reference takes doubles.
  Problem problem() const {
    Problem p{.batch = 1,
              .seqlen_q = rows_,
              .seqlen_k = columns_,
              .heads_q = 1,
              .heads_k = 1,
              .head_dim = d_,
              .head_dim_v = d_v_,
              .dtype = DType::f64,
              .softmax_scale = scale(),
              .mask = whole_.mask,
              .score = whole_.score,
              .sink = whole_.sink,
              .dropout = whole_.dropout};
    p.dropout.rng_state = false;  // a sample is drawn by the numbers of the descriptor
    const expr::Buffer query("sampled_query", tensor(queries_.data(), {rows_}));
    const expr::Buffer key("sampled_key", tensor(keys_.data(), {columns_}));
    const expr::Buffer value("sampled_value", tensor(values_.data(), {4}));
    for (Expr* e : {&p.mask, &p.score}) {
      if (e->empty()) continue;
      *e = substitute(*e, Op::query, query[expr::symbols().query]);
      *e = substitute(*e, Op::key, key[expr::symbols().key]);
      *e = substitute(*e, Op::head, value[0]);
      *e = substitute(*e, Op::batch, value[1]);
      *e = substitute(*e, Op::seqlen_q, value[2]);
      *e = substitute(*e, Op::seqlen_k, value[3]);
    }
    return p;
  }

  void add_reference(Json& result) {
    const auto view = [](std::vector<double>& x, std::int64_t rows, std::int64_t columns) {
      return tensor(x.data(), {1, rows, 1, columns});
    };
    const auto used = [](const Problem& p, const expr::Bindings& all) {
      expr::Bindings bindings;
      for (const Expr* e : {&p.mask, &p.score}) {
        if (e->empty()) continue;
        for (const auto& buffer : expr::buffers(*e)) {
          const auto named = [&](const auto& b) { return b.first == buffer->name(); };
          const auto found = std::find_if(all.begin(), all.end(), named);
          if (found != all.end() && std::none_of(bindings.begin(), bindings.end(), named)) {
            bindings.push_back(*found);
          }
        }
      }
      return bindings;
    };
    const Problem p = problem();
    Inputs inputs{.q = view(q_, rows_, d_),
                  .k = view(k_, columns_, d_),
                  .v = view(v_, columns_, d_v_),
                  .buffers = used(p, scores_.buffers)};
    if (whole_.sink) inputs.sink = tensor(&sink_, {1});
    std::vector<double> o(size(rows_, d_v_)), lse(size(rows_, 1)), dq(q_), dk(k_), dv(v_);
    const Outputs outputs{.o = view(o, rows_, d_v_), .lse = tensor(lse.data(), {1, 1, rows_})};
    const PlanOptions options{.backend = Backend::reference};
    forward(p, inputs, outputs, options);
    backward(
        p, inputs, outputs, view(d_o_, rows_, d_v_),
        {.dq = view(dq, rows_, d_), .dk = view(dk, columns_, d_), .dv = view(dv, columns_, d_v_)},
        options);
    result["reference"] = {
        {"o", list(o)}, {"lse", list(lse)}, {"dq", list(dq)}, {"dk", list(dk)}, {"dv", list(dv)}};
  }

  const Problem& whole_;
  const Scores& scores_;
  std::mt19937_64 random_;
  std::vector<std::int32_t> queries_, keys_;
  std::array<std::int32_t, 4> values_{};  // of head, batch, seqlen_q, seqlen_k
  std::int64_t rows_ = 0, columns_ = 0, d_ = 0, d_v_ = 0;
  std::vector<double> q_, k_, v_, d_o_;
  float sink_ = 0;
};

}  // namespace

Json sample(const Problem& problem, const Scores& scores, std::uint64_t seed) {
  return Sample(problem, scores, seed).json();
}

}  // namespace attn::explain
