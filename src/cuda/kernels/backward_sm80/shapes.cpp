#include "cuda/kernels/backward_sm80/shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/ceil_div.hpp"
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
    // Of 64 keys dK and dV would be all registers of a multiprocessor.
    BackwardSm80Shape{576, 64, 32, 8, 1, 4, 1, 2, true, 0,
                      "dK and dV of 32 keys take 128 registers; 201 KB; not timed", true},
    BackwardSm80Shape{576, 32, 32, 8, 1, 2, 1, 1, true, 0,
                      "as before with 32 queries; 133 KB; not timed", true},
    BackwardSm80Shape{576, 16, 32, 8, 1, 1, 1, 1, true, 0,
                      "as before with 16 queries, for smaller GPUs; 99 KB; not timed", true},
};

// Columns for which rows in shared memory have room: warps take turns at blocks of 16.
std::int64_t padded(std::int64_t head_dim, const BackwardSm80Shape& s) {
  const int turns = s.warps / std::min(s.key_warps, s.query_warps);
  return core::ceil_div(head_dim, 16 * turns) * 16 * turns;
}

}  // namespace

std::int64_t shared_bytes(const BackwardSm80Shape& s, const Problem& p) {
  const std::int64_t row = 2 * (padded(p.head_dim, s) + padded(p.head_dim_v, s));
  const std::int64_t stage = s.queries * (row + 2 * static_cast<std::int64_t>(sizeof(float)));
  return s.keys * row + std::int64_t{2} * 2 * s.queries * s.keys + s.stages * stage;
}

const BackwardSm80Shape* backward_sm80_shape(const Problem& p, Arch arch) {
  const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
  const auto wide_enough = [&](const BackwardSm80Shape& row) { return widest <= row.head_dim; };
  const auto first = std::ranges::find_if(kShapes, wide_enough);
  for (auto row = first; row != kShapes.end() && row->head_dim == first->head_dim; ++row) {
    if (shared_bytes(*row, p) <= most_shared_bytes(arch)) return &*row;
  }
  return nullptr;
}

std::string obstacle_of(const BackwardSm80Shape& s) {
  const auto divides = [&](int of, int rows, int most) {
    return of <= s.warps && rows / of % 16 == 0 && s.warps / of <= most;
  };
  // A warp has 16 columns of S at least; where half of them have it, some may have none.
  const bool scores = s.split_scores
                          ? s.queries / s.score_warps % 16 == 0 && 2 * s.score_warps <= s.warps
                          : divides(s.score_warps, s.queries, s.keys / 16);
  if (scores && divides(s.key_warps, s.keys, s.warps) &&
      divides(s.query_warps, s.queries, s.warps)) {
    return {};
  }
  return fmt::format(
      "the shape has m{}_n{}_w{}_x{}_k{}_q{}_h{}; accepted are warps that have 16 rows of each "
      "product, and 16 columns of S, or multiples of these",
      s.queries, s.keys, s.warps, s.score_warps, s.key_warps, s.query_warps,
      s.split_scores ? 1 : 0);
}

}  // namespace attn::cuda
