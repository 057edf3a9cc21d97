// The loop of an inference engine (docs/serving.md): requests share a paged cache, prompts come in
// chunks beside requests that decode. The model is made up: its projections are numbers drawn from
// token and position, so that every row of O can be compared with attention over the request's own
// tokens, computed one by one.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <vector>

#include "attn/attn.hpp"

namespace {

constexpr int kChunk = 24, kPage = 8, kPages = 64, kWidth = 12;
constexpr int kHeads = 6, kHeadsK = 2, kDim = 16, kLength = 90;

struct Request {
  std::vector<std::int32_t> tokens;
  int cached = 0;
  std::vector<std::int32_t> pages;
};

struct Pool {
  std::int32_t next = 0;
  std::int32_t take() { return (next += 5) % kPages; }  // not in order; 5 and 64 share no factor
};

// A number in (-1, 1) for a row's element: of a token at a position, in a tensor of a layer.
float element(int tensor, int token, int position, int i) {
  const auto x = static_cast<std::uint32_t>(((tensor * 131 + token) * 257 + position) * 521 + i);
  return static_cast<float>((x * 2654435761u) >> 8) / 8388608.0f - 1.0f;
}

struct Activations {};  // the projections look at the tokens alone

attn::Tensor of(const std::vector<std::int32_t>& x) {
  return attn::tensor(x.data(), {std::ssize(x)});
}
attn::Tensor of(const std::vector<std::int32_t>& x, std::int64_t width) {
  return attn::tensor(x.data(), {std::ssize(x) / width, width});
}

int rows_checked = 0;
double worst = 0;  // of the differences
void check(double got, double expected) {
  const double difference = std::abs(got - expected);
  if (!(difference <= worst)) worst = difference;
}

struct Layer {
  explicit Layer(int its_index) : index(its_index) {}

  int index;
  std::vector<float> cache_k = std::vector<float>(kPages * kPage * kHeadsK * kDim, NAN);
  std::vector<float> cache_v = cache_k;
  attn::Tensor k = attn::tensor(cache_k.data(), {kPages, kPage, kHeadsK, kDim});
  attn::Tensor v = attn::tensor(cache_v.data(), {kPages, kPage, kHeadsK, kDim});
  // Of the step.
  std::vector<Request> seen;
  std::vector<std::int32_t> of_step;
  std::vector<float> rows[4] = {};  // Q, K, V, O

  static constexpr int kWidths[] = {kHeads * kDim, kHeadsK* kDim, kHeadsK* kDim};
  std::vector<float> row(int tensor, const Request& r, int position) const {
    std::vector<float> out;
    const int token = r.tokens[static_cast<std::size_t>(position)];
    for (int i = 0; i < kWidths[tensor]; ++i) {
      out.push_back(element(index * 3 + tensor, token, position, i));
    }
    return out;
  }
  static int first_position(const Request& r, std::size_t b,
                            const std::vector<std::int32_t>& starts) {
    return r.cached - (starts[b + 1] - starts[b]);
  }

  std::array<attn::Tensor, 4> project(const Activations&, const std::vector<Request>& requests,
                                      const std::vector<std::int32_t>& starts) {
    seen = requests;
    of_step = starts;
    for (std::vector<float>& of : rows) of.clear();
    for (std::size_t b = 0; b < requests.size(); ++b) {
      for (int i = first_position(requests[b], b, starts); i < requests[b].cached; ++i) {
        for (int tensor = 0; tensor < 3; ++tensor) {
          const std::vector<float> one = row(tensor, requests[b], i);
          rows[tensor].insert(rows[tensor].end(), one.begin(), one.end());
        }
      }
    }
    rows[3].assign(rows[0].size(), NAN);
    const std::int64_t count = starts.back();
    return {attn::tensor(rows[0].data(), {count, kHeads, kDim}),
            attn::tensor(rows[1].data(), {count, kHeadsK, kDim}),
            attn::tensor(rows[2].data(), {count, kHeadsK, kDim}),
            attn::tensor(rows[3].data(), {count, kHeads, kDim})};
  }

  void append(const attn::Tensor&, const attn::Tensor&, const std::vector<Request>& requests,
              const std::vector<std::int32_t>& starts) {
    constexpr int kRow = kHeadsK * kDim;
    std::ptrdiff_t from = 0;
    for (std::size_t b = 0; b < requests.size(); ++b) {
      for (int i = first_position(requests[b], b, starts); i < requests[b].cached; ++i) {
        const int page = requests[b].pages[static_cast<std::size_t>(i / kPage)];
        const std::ptrdiff_t to = std::ptrdiff_t{page * kPage + i % kPage} * kRow;
        std::copy_n(rows[1].begin() + from, kRow, cache_k.begin() + to);
        std::copy_n(rows[2].begin() + from, kRow, cache_v.begin() + to);
        from += kRow;
      }
    }
  }

  // Compares.
  void finish(Activations&, const attn::Tensor& out) const {
    const std::vector<float>& o = rows[3];
    if (out.data != o.data()) worst = INFINITY;
    std::size_t at = 0;
    for (std::size_t b = 0; b < seen.size(); ++b) {
      const Request& r = seen[b];
      for (int i = first_position(r, b, of_step); i < r.cached; ++i) {
        const std::vector<float> q = row(0, r, i);
        for (int h = 0; h < kHeads; ++h, at += kDim) expect_row(r, i, h, q, o.data() + at);
      }
    }
  }
  void expect_row(const Request& r, int position, int head, const std::vector<float>& q,
                  const float* o) const {
    double sum = 0;
    std::vector<double> expected(kDim);
    const int first = head / (kHeads / kHeadsK) * kDim;
    for (int j = 0; j <= position; ++j) {
      const std::vector<float> key = row(1, r, j), value = row(2, r, j);
      double score = 0;
      for (int d = 0; d < kDim; ++d) {
        score += double{q[static_cast<std::size_t>(head * kDim + d)]} *
                 double{key[static_cast<std::size_t>(first + d)]};
      }
      const double weight = std::exp(score / std::sqrt(double{kDim}));
      sum += weight;
      for (int d = 0; d < kDim; ++d) {
        expected[static_cast<std::size_t>(d)] +=
            weight * double{value[static_cast<std::size_t>(first + d)]};
      }
    }
    for (int d = 0; d < kDim; ++d) {
      check(double{o[d]}, expected[static_cast<std::size_t>(d)] / sum);
    }
    ++rows_checked;
  }
};

struct Model {
  std::vector<Layer> layers;
  Activations embed(const std::vector<std::int32_t>&) const { return {}; }
};

void sample(const Activations&, std::vector<Request>& requests, const std::vector<std::int32_t>&) {
  for (Request& r : requests) {
    if (r.cached == static_cast<int>(r.tokens.size())) r.tokens.push_back(r.cached * 7 % 100);
  }
  std::erase_if(requests,
                [](const Request& r) { return static_cast<int>(r.tokens.size()) > kLength; });
}

void serve(std::vector<Request> requests) {
  Model model;
  model.layers.reserve(2);  // they hold views of themselves
  for (int i = 0; i < 2; ++i) model.layers.emplace_back(i);
  Pool pool;
  attn::Problem problem{.seqlen_q = kChunk, .mask = attn::causal()};
  problem.layout_q = attn::Layout::packed;
  problem.layout_k = attn::Layout::paged;
  while (!requests.empty()) {
    std::vector<std::int32_t> starts{0}, used, table, tokens;
    for (Request& r : requests) {
      const int rows = std::min(kChunk, static_cast<int>(r.tokens.size()) - r.cached);
      for (int i = 0; i < rows; ++i) tokens.push_back(r.tokens[r.cached++]);
      starts.push_back(starts.back() + rows);
      used.push_back(r.cached);  // a query sees its own key too
      while (std::ssize(r.pages) * kPage < r.cached) r.pages.push_back(pool.take());
      table.insert(table.end(), r.pages.begin(), r.pages.end());
      table.resize(used.size() * kWidth);  // entries past a length are not read
    }
    Activations x = model.embed(tokens);
    for (Layer& layer : model.layers) {
      auto [q, k, v, o] = layer.project(x, requests, starts);
      layer.append(k, v, requests, starts);  // to layer.k and layer.v [pages, kPage, heads_k, dim]
      attn::Inputs in{.q = q, .k = layer.k, .v = layer.v};
      in.cu_seqlens_q = of(starts);
      in.seqused_k = of(used);
      in.page_table = of(table, kWidth);
      attn::forward(problem, in, {.o = o});
      layer.finish(x, o);
    }
    sample(x, requests, starts);  // a token for requests without prompt left; ends some
  }
}

// x + (x W^T) W', with W of bf16.
void multiply() {
  constexpr int kRows = 3, kInner = 20, kWide = 40;
  std::vector<float> x(kRows * kInner), y(kRows * kWide), w_back(kWide * kInner), sum;
  std::vector<attn::bfloat16> w(kWide * kInner);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = element(1, 2, 3, static_cast<int>(i));
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = attn::bfloat16(element(4, 5, 6, static_cast<int>(i)));
    w_back[i] = element(7, 8, 9, static_cast<int>(i)) / kInner;
  }
  sum = x;
  const attn::Tensor activations = attn::tensor(x.data(), {kRows, kInner});
  const attn::Tensor weights = attn::tensor(w.data(), {kWide, kInner});
  const attn::Tensor projected = attn::tensor(y.data(), {kRows, kWide});
  const attn::Tensor back = attn::tensor(w_back.data(), {kWide, kInner});
  const attn::Tensor residual = attn::tensor(sum.data(), {kRows, kInner});
  attn::matmul({.a = activations, .b = attn::transposed(weights)}, projected);
  attn::MatmulProblem problem = attn::describe({.a = projected, .b = back}, residual);
  problem.accumulate = true;  // residual += projected * back
  attn::matmul(attn::make_plan(problem), {.a = projected, .b = back}, residual);
  for (std::size_t i = 0; i < kRows; ++i) {
    std::array<double, kWide> row{};
    for (std::size_t j = 0; j < kWide; ++j) {
      for (std::size_t l = 0; l < kInner; ++l) {
        row[j] += double{x[i * kInner + l]} * double{static_cast<float>(w[j * kInner + l])};
      }
    }
    for (std::size_t l = 0; l < kInner; ++l) {
      double expected = x[i * kInner + l];
      for (std::size_t j = 0; j < kWide; ++j) expected += row[j] * double{w_back[j * kInner + l]};
      check(double{sum[i * kInner + l]}, expected);
    }
  }
}

}  // namespace

int main() {
  std::vector<Request> requests;
  for (const int prompt : {1, 70, 24, 9}) {
    Request r;
    for (int i = 0; i < prompt; ++i) r.tokens.push_back((prompt + i * 3) % 100);
    requests.push_back(r);
  }
  serve(requests);
  multiply();
  std::printf("%d rows of O and a product: at most %.1e from those in double\n", rows_checked,
              worst);
  return rows_checked == 2 * 4 * kLength * kHeads && worst < 2e-6 ? 0 : 1;
}
