#include "traffic/tiles.hpp"

#include <algorithm>

#include "attn/expr.hpp"

namespace attn::traffic {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A mask that can be bounded here.
bool bounded(const Problem& p) {
  if (p.mask.empty()) return false;
  const auto buffers = expr::buffers(p.mask);
  return std::all_of(buffers.begin(), buffers.end(), [](const auto& buffer) {
    return buffer->tensor().data != nullptr && buffer->tensor().device.type == DeviceType::cpu;
  });
}

}  // namespace

Blocks paper_blocks(const Problem& problem, Phase phase, Algorithm algorithm,
                    std::int64_t fast_bytes) {
  const std::int64_t d = std::max(problem.head_dim, problem.head_dim_v);
  const std::int64_t bytes = 4 * d * static_cast<std::int64_t>(size_of(problem.dtype));
  const std::int64_t large = std::max<std::int64_t>(1, ceil_div(fast_bytes, bytes));
  const std::int64_t small = std::min(large, d);
  const bool q_stays = phase == Phase::forward && algorithm == Algorithm::flash_attention_2;
  return {std::clamp<std::int64_t>(q_stays ? large : small, 1,
                                   std::max<std::int64_t>(1, problem.seqlen_q)),
          std::clamp<std::int64_t>(q_stays ? small : large, 1,
                                   std::max<std::int64_t>(1, problem.seqlen_k))};
}

bool skips_empty_tiles(Algorithm algorithm) {
  return algorithm == Algorithm::flash_attention_2 || algorithm == Algorithm::block_sparse;
}

bool visible(const Problem& p, std::int64_t batch, std::int64_t head, std::int64_t row,
             std::int64_t rows, std::int64_t key, std::int64_t keys) {
  if (!bounded(p)) return true;
  const auto i32 = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const expr::Tile tile{.query_min = i32(row),
                        .query_max = i32(row + rows - 1),
                        .key_min = i32(key),
                        .key_max = i32(key + keys - 1),
                        .batch = i32(batch),
                        .head_min = i32(head),
                        .head_max = i32(head),
                        .seqlen_q = i32(p.seqlen_q),
                        .seqlen_k = i32(p.seqlen_k)};
  return expr::classify(p.mask, tile) != expr::Coverage::empty;
}

void for_each_head(const Problem& p,
                   const std::function<void(std::int64_t, std::int64_t, double)>& visit) {
  const bool by_batch = bounded(p) && expr::depends_on(p.mask, expr::Op::batch);
  const bool by_head = bounded(p) && expr::depends_on(p.mask, expr::Op::head);
  const std::int64_t batches = by_batch ? p.batch : std::min<std::int64_t>(1, p.batch);
  const std::int64_t heads = by_head ? p.heads_q : std::min<std::int64_t>(1, p.heads_q);
  const double weight = (by_batch ? 1.0 : static_cast<double>(p.batch)) *
                        (by_head ? 1.0 : static_cast<double>(p.heads_q));
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) visit(b, h, weight);
  }
}

TileSums tile_sums(const Problem& p, Algorithm algorithm, const Blocks& blocks) {
  const auto n_q = static_cast<double>(p.seqlen_q);
  const auto n_k = static_cast<double>(p.seqlen_k);
  const auto t_r = static_cast<double>(ceil_div(p.seqlen_q, blocks.q));
  const auto t_c = static_cast<double>(ceil_div(p.seqlen_k, blocks.k));
  const double heads = static_cast<double>(p.batch) * static_cast<double>(p.heads_q);
  TileSums sums{.tiles = heads * t_r * t_c};
  if (!skips_empty_tiles(algorithm) || !bounded(p)) {
    return {sums.tiles, sums.tiles, heads * n_q * t_c, heads * n_k * t_r, heads * n_q * n_k};
  }
  for_each_head(p, [&](std::int64_t b, std::int64_t h, double weight) {
    for (std::int64_t i = 0; i < p.seqlen_q; i += blocks.q) {
      const std::int64_t rows = std::min(blocks.q, p.seqlen_q - i);
      for (std::int64_t j = 0; j < p.seqlen_k; j += blocks.k) {
        const std::int64_t keys = std::min(blocks.k, p.seqlen_k - j);
        if (!visible(p, b, h, i, rows, j, keys)) continue;
        sums.visited += weight;
        sums.rows += weight * static_cast<double>(rows);
        sums.keys += weight * static_cast<double>(keys);
        sums.elements += weight * static_cast<double>(rows) * static_cast<double>(keys);
      }
    }
  });
  return sums;
}

}  // namespace attn::traffic
