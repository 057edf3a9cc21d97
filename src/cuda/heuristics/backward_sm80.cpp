#include "cuda/heuristics/backward_sm80.hpp"

#include <algorithm>
#include <array>

#include "cuda/kernels/shared_memory.hpp"

namespace attn::cuda {
namespace {

// Bounds: shared memory = K, V (keys x head_dim), P, dS (queries x keys) and for each stage Q, dO
// (queries x head_dim); 255 registers of 256 threads hold dK, dV (keys x head_dim), S and dP
// (queries x keys), and fragments. Blocks of 32 x 32 and more for a warp, so that each fragment
// that is read serves two products.
// stmatrix gave 5 % at head size 128 on an H200, and took 1 % at 64 (docs/log/cuda-backward.md).
constexpr std::array kShapes{
    BackwardSm80Shape{64, 128, 128, 8, 2, 4, 4, 4, false, 0,
                      "32 x 64 of S a warp; 64 queries are 12 % slower; 161 KB"},
    BackwardSm80Shape{64, 64, 128, 8, 2, 2, 4, 4, false, 0,
                      "32 x 32 of S a warp; 97 KB, for smaller GPUs"},
    BackwardSm80Shape{96, 64, 128, 8, 2, 2, 4, 4, true, 0,
                      "as 128, with dQ by columns that 96 divides; 129 KB; not timed"},
    BackwardSm80Shape{96, 64, 64, 8, 2, 4, 4, 4, true, 0,
                      "16 x 32 of S a warp; 89 KB, for smaller GPUs; not timed"},
    BackwardSm80Shape{128, 64, 128, 8, 2, 2, 4, 2, true, 128,
                      "dK and dV take 128 registers, S and dP 64; 161 KB"},
    BackwardSm80Shape{128, 64, 64, 8, 1, 4, 4, 4, true, 0,
                      "one stage; 81 KB, for smaller GPUs; not timed"},
    BackwardSm80Shape{256, 64, 64, 8, 2, 4, 2, 2, false, 0,
                      "dK and dV take 128 registers; one stage is 4 % slower; 209 KB"},
    BackwardSm80Shape{256, 64, 64, 8, 1, 4, 2, 2, false, 0, "as before with one stage; 145 KB"},
};

}  // namespace

const BackwardSm80Shape* backward_sm80_shape(const Problem& p, Arch arch) {
  const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
  for (const BackwardSm80Shape& row : kShapes) {
    if (widest > row.head_dim) continue;
    BackwardConfig config;
    config.kernel = BackwardKernel::sm80;
    config.head_dim = static_cast<int>(p.head_dim);
    config.head_dim_v = static_cast<int>(p.head_dim_v);
    set_backward_sm80(config, p, row);
    if (config.shared_bytes() <= most_shared_bytes(arch)) return &row;
  }
  return nullptr;
}

void set_backward_sm80(BackwardConfig& config, const Problem& p, const BackwardSm80Shape& shape) {
  config.block_m = shape.keys;
  config.block_n = shape.queries;
  config.warps = shape.warps;
  config.stages = shape.stages;
  config.score_warps = shape.score_warps;
  config.key_warps = shape.key_warps;
  config.query_warps = shape.query_warps;
  config.store_matrices = shape.store_matrices;
  config.l2_megabytes = shape.l2_megabytes;
  config.longest_first = !p.mask.empty();
  config.reason = shape.reason;
  config.allowed_spill_bytes = shape.spill_bytes;
}

}  // namespace attn::cuda
