#include "cuda/kernels/backward_one_pass/kernel.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/ceil_div.hpp"
#include "cuda/kernels/backward_one_pass/sizes.hpp"
#include "cuda/kernels/shared_memory.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

// Bytes of what tells tiles their turns (device/schedule/dq_turns.cuh), a multiple of 8.
core::Size turns_bytes(const Problem& p, const BackwardConfig& c) {
  if (!c.ordered) return 0;
  constexpr std::int64_t kTiles = 32, kTurnColumns = 128;
  const core::Size passed =
      core::divide_up(one_pass_rows(p, c), c.tiling.block_n) * ceil_div(p.head_dim, kTurnColumns);
  const core::Size seen = core::divide_up(key_blocks(p, c), kTiles) * query_blocks(p, c) *
                          (c.features.mask_heads ? p.heads_q : 1) *
                          (c.features.mask_batches ? p.batch : 1);
  return core::round_up((passed + seen + 1) * 4, 8);
}

}  // namespace

std::string one_pass_obstacle(const Problem& p, const BackwardTensors& tensors, std::int64_t most) {
  if (std::string why = tensor_core_obstacle(p, tensors, most); !why.empty()) return why;
  for (const auto& [size, n] :
       {std::pair{"seqlen_q", p.seqlen_q}, std::pair{"seqlen_k", p.seqlen_k}}) {
    if (n == 0) return fmt::format("{} is 0; accepted is at least 1", size);
  }
  return {};
}

std::string shared_memory_obstacle(std::int64_t bytes, Arch arch) {
  const std::int64_t most = most_shared_bytes(arch);
  if (bytes <= most) return {};
  return fmt::format("the shape takes {} bytes of shared memory; accepted are up to {}", bytes,
                     most);
}

void print_one_pass(const BackwardConfig& c, int piece_columns, bool scales_late, ConfigText& to) {
  to.number("kRowThreads", backward_row_threads(c));
  to.number("kPieceColumns", piece_columns);
  to.flag("kScalesLate", scales_late);
  to.flag("kLongestFirst", c.features.masked);
  to.flag("kOrdered", c.ordered);
}

core::Size one_pass_workspace(const Problem& p, const BackwardConfig& config) {
  // dQ, LSE and D, each of whole blocks of 64 rows: multiples of 128 bytes.
  return one_pass_rows(p, config) * (4 * p.head_dim + 8) + turns_bytes(p, config) +
         one_pass_words(p, config) * static_cast<std::int64_t>(sizeof(device::QueryWord));
}

void place_one_pass(device::BackwardParams& to, const Problem& p, const BackwardConfig& config,
                    std::byte* at) {
  const std::int64_t rows = one_pass_rows(p, config).value();
  to.dq_sum = reinterpret_cast<float*>(at);
  to.lse2 = to.dq_sum + rows * p.head_dim;
  to.d = to.lse2 + rows;
  to.query_words = reinterpret_cast<device::QueryWord*>(reinterpret_cast<std::byte*>(to.d + rows) +
                                                        turns_bytes(p, config).value());
}

}  // namespace attn::cuda
