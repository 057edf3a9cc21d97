#include "core/problem/costs.hpp"

#include <algorithm>

namespace attn::core {
namespace {

// Visible elements of the tile: halved along its longer side until it is proven empty or full.
double visible(const expr::Expr& mask, const expr::Tile& t) {
  const double queries = static_cast<double>(t.query_max) - t.query_min + 1;
  const double keys = static_cast<double>(t.key_max) - t.key_min + 1;
  const expr::Coverage coverage = expr::classify(mask, t);
  if (coverage == expr::Coverage::empty) return 0;
  if (coverage == expr::Coverage::full) return queries * keys;
  // A single element that stays unproven reads something that bounds cannot decide: counted as
  // seen.
  if (queries == 1 && keys == 1) return 1;
  expr::Tile low = t;
  expr::Tile high = t;
  if (queries >= keys) {
    low.query_max = t.query_min + (t.query_max - t.query_min) / 2;
    high.query_min = low.query_max + 1;
  } else {
    low.key_max = t.key_min + (t.key_max - t.key_min) / 2;
    high.key_min = low.key_max + 1;
  }
  return visible(mask, low) + visible(mask, high);
}

// Data that is not there, or not on the CPU.
bool reads_missing_data(const expr::Expr& e) {
  const auto buffers = expr::buffers(e);
  return std::any_of(buffers.begin(), buffers.end(), [](const auto& buffer) {
    const Tensor& t = buffer->tensor();
    return t.data == nullptr || t.device.type != DeviceType::cpu;
  });
}

}  // namespace

double visible_elements(const Problem& p) {
  const double all = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) *
                     static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_k);
  if (p.mask.empty() || all == 0 || reads_missing_data(p.mask)) return all;
  const std::int64_t batches = expr::depends_on(p.mask, expr::Op::batch) ? p.batch : 1;
  const std::int64_t heads = expr::depends_on(p.mask, expr::Op::head) ? p.heads_q : 1;
  double sum = 0;
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      expr::Tile t;
      t.query_max = static_cast<std::int32_t>(p.seqlen_q - 1);
      t.key_max = static_cast<std::int32_t>(p.seqlen_k - 1);
      t.batch = static_cast<std::int32_t>(b);
      t.head_min = t.head_max = static_cast<std::int32_t>(h);
      t.seqlen_q = static_cast<std::int32_t>(p.seqlen_q);
      t.seqlen_k = static_cast<std::int32_t>(p.seqlen_k);
      sum += visible(p.mask, t);
    }
  }
  // batches and heads are 1 or all.
  return sum * (static_cast<double>(p.batch) / static_cast<double>(batches)) *
         (static_cast<double>(p.heads_q) / static_cast<double>(heads));
}

double bytes(const Problem& p, Phase phase) {
  const auto d = static_cast<double>(p.head_dim);
  const auto d_v = static_cast<double>(p.head_dim_v);
  const double rows_q = static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seqlen_q);
  const double rows_k = static_cast<double>(p.batch * p.heads_k) * static_cast<double>(p.seqlen_k);
  const auto element = static_cast<double>(size_of(p.dtype));
  if (phase == Phase::forward) {
    return element * (rows_q + rows_k) * (d + d_v) + 4 * rows_q;  // Q, K, V, O; LSE
  }
  return element * (rows_q * (2 * d + 2 * d_v) + rows_k * 2 * (d + d_v)) + 4 * rows_q;
}

double flops_per_element(const Problem& p, Phase phase) {
  const auto d = static_cast<double>(p.head_dim);
  const auto d_v = static_cast<double>(p.head_dim_v);
  if (phase == Phase::forward) return 2 * (d + d_v);  // Q K^T and P V
  return 2 * (3 * d + 2 * d_v);                       // Q K^T, dO V^T, P^T dO, dS^T Q, dS K
}

}  // namespace attn::core

namespace attn {

double Plan::flops() const {
  return core::visible_elements(problem) * core::flops_per_element(problem, phase);
}

}  // namespace attn
