#include <fmt/format.h>

#include <algorithm>

#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/forward_kernel_name.hpp"
#include "cuda/plan/splits.hpp"
#include "traffic/model.hpp"
#include "traffic/plan.hpp"
#include "traffic/tiles.hpp"

namespace attn::traffic {
namespace {

// Tiles of block_m rows of one (batch entry, group of query heads): Q once, the K, V blocks that
// some row may see, O and LSE once. Rows go query by query through the heads of the group.
struct Tiles {
  const Problem& p;
  const cuda::ForwardConfig& config;
  std::int32_t splits;
  bool skips = true;  // tiles that no row sees
  Traffic traffic{};

  double bytes(std::int64_t rows, std::int64_t columns) const {
    return static_cast<double>(rows * columns) * static_cast<double>(size_of(p.dtype));
  }

  bool sees(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t rows,
            std::int64_t key, std::int64_t keys) const {
    if (!skips) return true;
    const std::int64_t first = row / config.tiling.group;
    const std::int64_t last = (row + rows - 1) / config.tiling.group;
    for (std::int64_t h = head; h < head + config.tiling.group; ++h) {
      if (visible(p, batch, h, first, last - first + 1, key, keys)) return true;
    }
    return false;
  }

  void count(std::int64_t batch, std::int64_t head, double weight) {
    const std::int64_t all_rows = p.seqlen_q * config.tiling.group;
    Traffic sum;
    for (std::int64_t row = 0; row < all_rows; row += config.tiling.rows) {
      const std::int64_t rows = std::min<std::int64_t>(config.tiling.rows, all_rows - row);
      sum[Operand::q].read += bytes(rows, p.head_dim) * splits;
      for (std::int64_t key = 0; key < p.seqlen_k; key += config.tiling.keys) {
        const std::int64_t keys = std::min<std::int64_t>(config.tiling.keys, p.seqlen_k - key);
        if (!sees(batch, head, row, rows, key, keys)) continue;
        sum[Operand::k].read += bytes(keys, p.head_dim);
        sum[Operand::v].read += bytes(keys, p.head_dim_v);
      }
      if (splits > 1) {
        const double part = 4.0 * static_cast<double>(rows * (p.head_dim_v + 2)) * splits;
        sum[Operand::partial].read += part;
        sum[Operand::partial].written += part;
      }
      sum[Operand::o].written += bytes(rows, p.head_dim_v);
      sum[Operand::lse].written += 4.0 * static_cast<double>(rows);
    }
    sum *= weight;
    traffic += sum;
  }

  // forward_flash_attention: K and V once; each of their blocks meets every tile of queries, whose
  // O, m and l are float32 in the workspace but for zeros at the first block and the results after
  // the last one.
  void count_keys_outside(std::int64_t batch, std::int64_t head, double weight) {
    Traffic sum;
    const std::int64_t step = config.tiling.keys_at_once();
    for (std::int64_t key = 0; key == 0 || key < p.seqlen_k; key += step) {
      const std::int64_t keys = std::min<std::int64_t>(step, p.seqlen_k - key);
      const bool first = key == 0, last = key + step >= p.seqlen_k;
      sum[Operand::k].read += bytes(keys, p.head_dim);
      sum[Operand::v].read += bytes(keys, p.head_dim_v);
      for (std::int64_t row = 0; row < p.seqlen_q; row += config.tiling.rows) {
        const std::int64_t rows = std::min<std::int64_t>(config.tiling.rows, p.seqlen_q - row);
        if (!first && !last && !sees(batch, head, row, rows, key, keys)) continue;
        sum[Operand::q].read += bytes(rows, p.head_dim);
        const double o = 4.0 * static_cast<double>(rows * p.head_dim_v);
        const double sums = 8.0 * static_cast<double>(rows);
        sum[Operand::o].read += first ? 0 : o;
        sum[Operand::lse].read += first ? 0 : sums;
        sum[Operand::o].written += last ? 0 : o;
        sum[Operand::lse].written += last ? 0 : sums;
      }
    }
    sum[Operand::o].written += bytes(p.seqlen_q, p.head_dim_v);
    sum[Operand::lse].written += 4.0 * static_cast<double>(p.seqlen_q);
    sum *= weight;
    traffic += sum;
  }

  // forward_standard: each pass its operands; the softmax reads S three times (largest, sum, P).
  void count_standard(double weight) {
    Traffic sum;
    const std::int64_t blocks = (p.seqlen_q + config.tiling.rows - 1) / config.tiling.rows;
    const auto tiles = static_cast<double>(blocks);
    const double scores = 4.0 * static_cast<double>(p.seqlen_q * p.seqlen_k);
    sum[Operand::q].read += bytes(p.seqlen_q, p.head_dim);
    sum[Operand::k].read += bytes(p.seqlen_k, p.head_dim) * tiles;
    sum[Operand::s].written += scores;
    sum[Operand::s].read += 3 * scores;
    sum[Operand::p].written += scores;
    sum[Operand::p].read += scores;
    sum[Operand::v].read += bytes(p.seqlen_k, p.head_dim_v) * tiles;
    sum[Operand::o].written += bytes(p.seqlen_q, p.head_dim_v);
    sum[Operand::lse].written += 4.0 * static_cast<double>(p.seqlen_q);
    sum *= weight;
    traffic += sum;
  }
};

}  // namespace

PlanTraffic cuda_plan_traffic(const Problem& problem, Phase phase, cuda::Arch arch,
                              int multiprocessors, Algorithm algorithm, const std::string& kernel) {
  refuse_key_lists(problem);
  if (phase == Phase::backward) return cuda_backward_traffic(problem, arch, algorithm, kernel);
  const std::string named = cuda::forward_kernel_name(algorithm, kernel);
  cuda::ForwardConfig config = cuda::choose_forward(problem, arch, {}, 1, named);
  const Algorithm own = config.algorithm;
  const bool split = algorithm == Algorithm::automatic || algorithm == Algorithm::flash_decoding;
  const std::int32_t splits = split ? cuda::choose_splits(problem, config, multiprocessors) : 1;
  if (splits > 1) config = cuda::choose_forward(problem, arch, {}, splits, named);
  Tiles tiles{problem, config, splits, own != Algorithm::flash_attention};
  const bool by_head = !problem.mask.empty() && expr::depends_on(problem.mask, expr::Op::head);
  const bool by_batch = !problem.mask.empty() && expr::depends_on(problem.mask, expr::Op::batch);
  const std::int64_t groups = problem.heads_q / config.tiling.group;
  const std::int64_t batches = by_batch ? problem.batch : 1;
  const std::int64_t heads = by_head ? groups : 1;
  const double weight = (by_batch ? 1.0 : static_cast<double>(problem.batch)) *
                        (by_head ? 1.0 : static_cast<double>(groups));
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t g = 0; g < heads; ++g) {
      if (own == Algorithm::standard) {
        tiles.count_standard(weight);
      } else if (config.kernel->tile_is_head) {
        tiles.count_keys_outside(b, g, weight);
      } else {
        tiles.count(b, g * config.tiling.group, weight);
      }
    }
  }
  return {.traffic = tiles.traffic,
          .backend = Backend::cuda,
          .algorithm = splits > 1 ? Algorithm::flash_decoding : own,
          .target = fmt::format("{} {}", config.kernel->name, to_string(arch)),
          .block_q = config.tiling.rows,
          .block_k = config.tiling.keys_at_once(),
          .rows_per_task = config.tiling.rows,
          .num_splits = splits};
}

}  // namespace attn::traffic
