#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attn/error.hpp"
#include "cuda/kernels/backward_one_pass/sizes.hpp"
#include "cuda/plan/backward_kernel_name.hpp"
#include "cuda/plan/choose_backward.hpp"
#include "traffic/plan.hpp"
#include "traffic/tiles.hpp"

namespace attn::traffic {
namespace {

// The traffic of one query head. K, V and their gradients, which a group of heads shares, are
// counted apart.
struct Heads {
  const Problem& p;
  const cuda::BackwardConfig& config;
  Traffic traffic{};

  double bytes(std::int64_t rows, std::int64_t columns) const {
    return static_cast<double>(rows * columns) * static_cast<double>(size_of(p.dtype));
  }
  // Calls visit(keys, rows, first, last) for each tile that the kernel works on: first and last say
  // so of the block of keys.
  template <class Visit>
  void for_each_tile(std::int64_t batch, std::int64_t head, bool ends_stay, const Visit& visit) {
    const std::int64_t step = config.tiling.block_m, height = config.tiling.block_n;
    for (std::int64_t key = 0; key == 0 || key < p.seqlen_k; key += step) {
      const std::int64_t keys = std::min(step, p.seqlen_k - key);
      const bool first = key == 0, last = key + step >= p.seqlen_k;
      for (std::int64_t row = 0; row < p.seqlen_q; row += height) {
        const std::int64_t rows = std::min(height, p.seqlen_q - row);
        const bool stays =
            ends_stay && (config.algorithm != Algorithm::block_sparse || first || last);
        if (stays || visible(p, batch, head, row, rows, key, keys)) visit(rows, first, last);
      }
    }
  }

  // Gradients of K and V once, and where a kernel keeps a block of K and V, these once.
  void count_keys(double heads_k, bool kept) {
    Traffic sum;
    sum[Operand::dk].written = bytes(p.seqlen_k, p.head_dim);
    sum[Operand::dv].written = bytes(p.seqlen_k, p.head_dim_v);
    if (kept) sum[Operand::k].read = sum[Operand::dk].written;
    if (kept) sum[Operand::v].read = sum[Operand::dv].written;
    sum *= heads_k;
    traffic += sum;
  }

  // backward_flash_attention: D is made anew from O and dO in each tile; dQ is float32 in memory
  // but for zeros at the first block of keys and the result after the last one.
  void count_keys_outside(std::int64_t batch, std::int64_t head, double weight) {
    Traffic sum;
    for_each_tile(batch, head, true, [&](std::int64_t rows, bool first, bool last) {
      sum[Operand::q].read += bytes(rows, p.head_dim);
      sum[Operand::o].read += bytes(rows, p.head_dim_v);
      sum[Operand::d_o].read += bytes(rows, p.head_dim_v);
      sum[Operand::lse].read += 4.0 * static_cast<double>(rows);
      const double dq = 4.0 * static_cast<double>(rows * p.head_dim);
      sum[Operand::dq].read += first ? 0 : dq;
      sum[Operand::dq].written += last ? bytes(rows, p.head_dim) : dq;
    });
    sum *= weight;
    traffic += sum;
  }

  // backward_standard: the operands of each product by tiles of 64 queries and keys, P and dP in
  // float32: both are read for dS, dS by dQ and dK, P by dV. What a score expression's
  // slope reads is not counted.
  void count_matrices(const std::vector<cuda::BackwardConfig>& launches, double weight) {
    Traffic sum;
    const double scores = 4.0 * static_cast<double>(p.seqlen_q * p.seqlen_k);
    sum[Operand::p] = {2 * scores, scores};
    sum[Operand::dp] = {scores, scores};
    sum[Operand::ds] = {2 * scores, scores};
    for (const cuda::BackwardConfig& launch : launches) {
      const auto tiles = [&](std::int64_t rows, std::int64_t of) {
        const std::int64_t count = (rows + of - 1) / of;
        return static_cast<double>(count);
      };
      const double of_queries = tiles(p.seqlen_q, launch.tiling.block_m);
      const double of_keys = tiles(p.seqlen_k, launch.tiling.block_m);
      switch (launch.gradient) {
        case device::Gradient::ds: {
          const double blocks = tiles(p.seqlen_k, launch.tiling.block_n);
          sum[Operand::q].read += blocks * bytes(p.seqlen_q, p.head_dim);
          sum[Operand::d_o].read += blocks * bytes(p.seqlen_q, p.head_dim_v);
          sum[Operand::lse].read += blocks * 4.0 * static_cast<double>(p.seqlen_q);
          sum[Operand::k].read += of_queries * bytes(p.seqlen_k, p.head_dim);
          sum[Operand::v].read += of_queries * bytes(p.seqlen_k, p.head_dim_v);
          break;
        }
        case device::Gradient::dq:
          sum[Operand::k].read += of_queries * bytes(p.seqlen_k, p.head_dim);
          sum[Operand::dq].written += bytes(p.seqlen_q, p.head_dim);
          break;
        case device::Gradient::dk:
          sum[Operand::q].read += of_keys * bytes(p.seqlen_q, p.head_dim);
          break;
        case device::Gradient::dv:
          sum[Operand::d_o].read += of_keys * bytes(p.seqlen_q, p.head_dim_v);
          break;
        case device::Gradient::dk_dv:
        case device::Gradient::all:
        case device::Gradient::buffers:
          break;
      }
    }
    sum *= weight;
    traffic += sum;
  }

  // backward_sm80 and backward_sm90: a kernel ahead makes LSE and D of each row and, but for tiles
  // that add in order, clears the sums of dQ, tiles add to these in float32, of whole blocks of
  // queries, and a kernel behind rounds them, both of whole places.
  void count_one_pass(std::int64_t batch, std::int64_t head, double weight) {
    Traffic sum;
    const std::int64_t rows = p.seqlen_q;
    const auto sums = [&](std::int64_t count) {
      return 4.0 * static_cast<double>(count * p.head_dim);
    };
    const std::int64_t step = std::max(config.tiling.block_n, cuda::kPlaceQueries);
    const double all = sums((rows + step - 1) / step * step);
    sum[Operand::o].read = sum[Operand::d_o].read = bytes(rows, p.head_dim_v);
    sum[Operand::lse].read = 4.0 * static_cast<double>(rows);
    sum[Operand::d].written = 8.0 * static_cast<double>(rows);
    sum[Operand::dq].written = (config.ordered ? 0 : all) + bytes(rows, p.head_dim);
    sum[Operand::dq].read = all;
    for_each_tile(batch, head, false, [&](std::int64_t of, bool, bool) {
      sum[Operand::q].read += bytes(of, p.head_dim);
      sum[Operand::d_o].read += bytes(of, p.head_dim_v);
      sum[Operand::d].read += 8.0 * static_cast<double>(of);
      sum[Operand::dq].written += sums(config.tiling.block_n);
    });
    sum *= weight;
    traffic += sum;
  }
};

}  // namespace

PlanTraffic cuda_backward_traffic(const Problem& problem, cuda::Arch arch, Algorithm algorithm,
                                  const std::string& kernel) {
  const std::string named = cuda::backward_kernel_name(algorithm, kernel);
  const cuda::BackwardWish wish{arch, named, false};
  const cuda::BackwardKernel& chosen = cuda::choose_backward_kernel(problem, {}, wish);
  const std::vector<cuda::BackwardConfig> launches =
      cuda::backward_launches(chosen, problem, {}, {}, wish);
  const cuda::BackwardConfig& config = launches.front();
  const bool flash = chosen.algorithm == Algorithm::flash_attention;
  const bool standard = chosen.algorithm == Algorithm::standard;
  if (!flash && !standard && (!chosen.one_pass || config.tiling.cluster > 1)) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{} has no count of bytes{}; accepted in the backward pass are "
                    "backward_flash_attention, backward_standard, backward_sm80 and "
                    "backward_sm90 without pairs of blocks",
                    chosen.name, config.tiling.cluster > 1 ? " where pairs share a tile" : ""));
  }
  Heads heads{problem, config};
  heads.count_keys(static_cast<double>(problem.batch * problem.heads_k), !standard);
  for_each_head(problem, [&](std::int64_t batch, std::int64_t head, double weight) {
    if (flash) {
      heads.count_keys_outside(batch, head, weight);
    } else if (standard) {
      heads.count_matrices(launches, weight);
    } else {
      heads.count_one_pass(batch, head, weight);
    }
  });
  return {.traffic = heads.traffic,
          .backend = Backend::cuda,
          .algorithm = config.algorithm,
          .target = fmt::format("{} {}", chosen.name, to_string(arch)),
          .block_q = config.tiling.block_n,
          .block_k = config.tiling.block_m,
          .rows_per_task = config.tiling.block_m};
}

}  // namespace attn::traffic
