#include "core/problem/costs.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "core/cache_type.hpp"
#include "core/problem/rows.hpp"

namespace attn::core {
namespace {

// A mask is cut into up to so many tiles of one size about which nothing is proven, before the rest
// is sampled: enough for a few diagonals and for blocks of 32. Of kSamples samples a share of 1/2
// is off by 1/256 of itself (one standard deviation), less where tiles have told parts apart.
double most_tiles(const expr::Tile& t) {
  return 4 * (static_cast<double>(t.seqlen_q) + t.seqlen_k) + 16384;
}
constexpr double kSamples = 1 << 16;

double queries_of(const expr::Tile& t) {
  return static_cast<double>(t.query_max) - t.query_min + 1;
}
double keys_of(const expr::Tile& t) { return static_cast<double>(t.key_max) - t.key_min + 1; }

bool sees(const expr::Expr& mask, const expr::Tile& t, std::int32_t query, std::int32_t key) {
  return expr::evaluate<float>(mask, {.query = query,
                                      .key = key,
                                      .batch = t.batch,
                                      .head = t.head_min,
                                      .seqlen_q = t.seqlen_q,
                                      .seqlen_k = t.seqlen_k}) != 0;
}

double count_each(const expr::Expr& mask, const expr::Tile& t) {
  double sum = 0;
  for (std::int32_t query = t.query_min; query <= t.query_max; ++query) {
    for (std::int32_t key = t.key_min; key <= t.key_max; ++key) sum += sees(mask, t, query, key);
  }
  return sum;
}

// The random numbers are the same in each call, so that the same plan has the same flops.
double sample(const expr::Expr& mask, const std::vector<expr::Tile>& tiles) {
  double all = 0;
  for (const expr::Tile& t : tiles) all += queries_of(t) * keys_of(t);
  std::mt19937 random(1);
  const auto below = [&](double limit) {
    return static_cast<std::int32_t>(limit * 0x1p-32 * static_cast<double>(random()));
  };
  double sum = 0;
  for (const expr::Tile& t : tiles) {
    const double size = queries_of(t) * keys_of(t);
    const double samples = std::ceil(kSamples * size / all);
    if (size <= samples) {
      sum += count_each(mask, t);
      continue;
    }
    double seen = 0;
    for (double i = 0; i < samples; ++i) {
      const std::int32_t query = t.query_min + below(queries_of(t));
      seen += sees(mask, t, query, t.key_min + below(keys_of(t)));
    }
    sum += size * seen / samples;
  }
  return sum;
}

// Tiles are halved along their longer side until they are proven empty or full, all of one size
// before the next smaller ones.
double visible(const expr::Expr& mask, std::vector<expr::Tile> tiles) {
  constexpr double kFew = 4;  // elements that are evaluated sooner than proven
  double sum = 0;
  while (!tiles.empty()) {
    if (static_cast<double>(tiles.size()) > most_tiles(tiles.front())) {
      return sum + sample(mask, tiles);
    }
    std::vector<expr::Tile> halves;
    for (const expr::Tile& t : tiles) {
      const double size = queries_of(t) * keys_of(t);
      const expr::Coverage coverage =
          size <= kFew ? expr::Coverage::mixed : expr::classify(mask, t);
      if (coverage == expr::Coverage::empty) continue;
      if (coverage == expr::Coverage::full || size <= kFew) {
        sum += coverage == expr::Coverage::full ? size : count_each(mask, t);
        continue;
      }
      expr::Tile low = t, high = t;
      if (queries_of(t) >= keys_of(t)) {
        low.query_max = t.query_min + (t.query_max - t.query_min) / 2;
        high.query_min = low.query_max + 1;
      } else {
        low.key_max = t.key_min + (t.key_max - t.key_min) / 2;
        high.key_min = low.key_max + 1;
      }
      halves.push_back(low);
      halves.push_back(high);
    }
    tiles = std::move(halves);
  }
  return sum;
}

// Data that is not there, or not on the CPU.
bool reads_missing_data(const expr::Expr& e) {
  const auto buffers = expr::buffers(e);
  return std::any_of(buffers.begin(), buffers.end(), [](const auto& buffer) {
    const Tensor& t = buffer->tensor();
    return t.data == nullptr || t.device.type != DeviceType::cpu;
  });
}

// Keys that a row looks at: those of its list, or of its sequence.
double keys_of_row(const Problem& p, std::int64_t seqlen_k) {
  return static_cast<double>(p.key_list > 0 ? p.key_list : seqlen_k);
}

// K and V rows that are read of a sequence and head: of lists those of each query.
double rows_read(const Problem& p, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  return keys_of_row(p, seqlen_k) * (p.key_list > 0 ? static_cast<double>(seqlen_q) : 1);
}

// Of a head of batch entries [first, first + batches), whose sequences have these lengths.
double visible_in(const Problem& p, std::int64_t first, std::int64_t batches, std::int64_t seqlen_q,
                  std::int64_t seqlen_k) {
  const double all = static_cast<double>(batches) * static_cast<double>(p.heads_q) *
                     static_cast<double>(seqlen_q) * keys_of_row(p, seqlen_k);
  if (p.key_list > 0) return all;  // which keys they are is not known
  if (p.mask.empty() || all == 0 || reads_missing_data(p.mask)) return all;
  if (!expr::depends_on(p.mask, expr::Op::batch)) batches = 1;
  const std::int64_t heads = expr::depends_on(p.mask, expr::Op::head) ? p.heads_q : 1;
  // One row stands for all where they are alike, and one column.
  using expr::Op;
  const bool rows_alike = !expr::depends_on(p.mask, Op::query);
  const bool columns_alike = !expr::depends_on(p.mask, Op::key);
  std::vector<expr::Tile> tiles;
  for (std::int64_t b = first; b < first + batches; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      expr::Tile t;
      t.query_max = rows_alike ? 0 : static_cast<std::int32_t>(seqlen_q - 1);
      t.key_max = columns_alike ? 0 : static_cast<std::int32_t>(seqlen_k - 1);
      t.batch = static_cast<std::int32_t>(b);
      t.head_min = t.head_max = static_cast<std::int32_t>(h);
      t.seqlen_q = static_cast<std::int32_t>(seqlen_q);
      t.seqlen_k = static_cast<std::int32_t>(seqlen_k);
      tiles.push_back(t);
    }
  }
  // The share that these tiles have is taken for all, as if each tile were whole, in each batch
  // entry and head.
  const double share =
      visible(p.mask, tiles) /
      (static_cast<double>(tiles.size()) * queries_of(tiles.front()) * keys_of(tiles.front()));
  return all * share;
}

// Q, O and LSE have rows_q rows of all heads, K and V rows_k beside those of a shared prefix.
double bytes_of_rows(const Problem& p, Phase phase, double rows_q, double rows_k) {
  const auto d = static_cast<double>(p.head_dim);
  const auto d_v = static_cast<double>(p.head_dim_v);
  const auto element = static_cast<double>(size_of(p.dtype));
  const auto query = static_cast<double>(row_bytes(type_of_q(p), p.head_dim));
  const auto key = static_cast<double>(row_bytes(type_of_k(p), p.head_dim) +
                                       row_bytes(type_of_v(p), p.head_dim_v));
  rows_k += static_cast<double>(p.heads_k) * static_cast<double>(p.seqlen_prefix);
  if (phase == Phase::forward) {
    const auto result = static_cast<double>(size_of(type_of_o(p)));
    return rows_q * (query + result * d_v) + key * rows_k + 4 * rows_q;  // Q, O; K, V; LSE
  }
  return element * (rows_q * (2 * d + 2 * d_v) + rows_k * 2 * (d + d_v)) + 4 * rows_q;
}

}  // namespace

double visible_elements(const Problem& p) {
  return visible_in(p, 0, p.batch, p.seqlen_q, p.seqlen_prefix + p.seqlen_k);
}

double bytes(const Problem& p, Phase phase) {
  return bytes_of_rows(
      p, phase, static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seqlen_q),
      static_cast<double>(p.batch * p.heads_k) * rows_read(p, p.seqlen_q, p.seqlen_k));
}

double flops_per_element(const Problem& p, Phase phase) {
  const auto d = static_cast<double>(p.head_dim);
  const auto d_v = static_cast<double>(p.head_dim_v);
  if (phase == Phase::forward) return 2 * (d + d_v);  // Q K^T and P V
  return 2 * (3 * d + 2 * d_v);                       // Q K^T, dO V^T, P^T dO, dS^T Q, dS K
}

double flops(const Problem& p, Phase phase, const Inputs& inputs) {
  bool whole = true;  // counted together, in less time
  double elements = 0;
  for (std::int64_t b = 0; b < p.batch && whole; ++b) {
    const Sequence s = sequence(p, inputs, b);
    whole = s.length_q == p.seqlen_q && s.length_k == p.seqlen_prefix + p.seqlen_k;
  }
  if (whole) elements = visible_elements(p);
  for (std::int64_t b = 0; b < p.batch && !whole; ++b) {
    const Sequence s = sequence(p, inputs, b);
    elements += visible_in(p, b, 1, s.length_q, s.length_k);
  }
  return elements * flops_per_element(p, phase);
}

double bytes(const Problem& p, Phase phase, const Inputs& inputs) {
  double rows_q = 0, rows_k = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence(p, inputs, b);
    rows_q += static_cast<double>(p.heads_q) * s.length_q;
    rows_k +=
        static_cast<double>(p.heads_k) * rows_read(p, s.length_q, s.length_k - p.seqlen_prefix);
  }
  return bytes_of_rows(p, phase, rows_q, rows_k);
}

}  // namespace attn::core

namespace attn {

double Plan::flops() const {
  return core::visible_elements(problem) * core::flops_per_element(problem, phase);
}

}  // namespace attn
