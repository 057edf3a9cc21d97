#include "cuda/kernels/forward_sm80/kernel.hpp"

#include <algorithm>
#include <array>

#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

struct Shape {
  int head_dim;  // up to this, of the larger of Q K's and V's
  int rows, keys, warps, stages;
  int spill_bytes;  // accepted, at most, under any of tests/cuda/kernels.txt
  std::string_view reason;
};

// Registers of a thread hold O (rows / warps * head_dim_v / 32), S likewise over keys, and
// operands: 160 of both leave enough for any mask and score and dropout. Shared memory is at most
// 99 KB, what the smallest of these GPUs gives to a block.
constexpr std::array kShapes{
    Shape{64, 128, 64, 4, 2, 0,
          "32 rows a warp halve the traffic of K and V; 48 KB, two blocks of "
          "threads a multiprocessor"},
    Shape{96, 128, 32, 4, 2, 0,
          "32 rows a warp; 64 keys would take 160 registers and dropout does "
          "not fit beside them; 48 KB"},
    Shape{128, 128, 32, 4, 2, 32, "32 rows a warp, so 32 keys: O takes 128 registers; 64 KB"},
    Shape{192, 128, 64, 8, 1, 0, "16 rows a warp: O takes 96 registers; 96 KB"},
    Shape{256, 64, 64, 4, 1, 8,
          "16 rows a warp: O takes 128 registers; 96 KB; on an H200 a quarter faster than "
          "128 rows x 32 keys, as two blocks of threads share a multiprocessor"},
};
// Shapes for up to 64 rows of Q, as in decoding: these wait for K and V, so more bytes are in
// flight.
constexpr int kFewRows = 64;
constexpr std::array kFewRowsShapes{
    Shape{128, kFewRows, 64, 4, 2, 0, "few rows; 80 KB, two tiles of K and V in flight"},
    Shape{256, kFewRows, 64, 4, 1, 0, "few rows; 96 KB"},
};

std::span<const Shape> shapes_for(const Problem& p) {
  if (p.seqlen_q * (p.heads_q / p.heads_k) <= kFewRows) return kFewRowsShapes;
  return kShapes;
}

// Q, then for each stage K and V, in rows of whole steps of 16 columns.
std::int64_t shared_bytes(const Problem& p, const Shape& s) {
  const std::int64_t row_k = (p.head_dim + 15) / 16 * 32, row_v = (p.head_dim_v + 15) / 16 * 32;
  return s.rows * row_k + std::int64_t{s.stages} * s.keys * (row_k + row_v);
}

class ForwardSm80 final : public ForwardShape {
 public:
  explicit ForwardSm80(const Shape& shape) : shape_(shape) {}
  void print(const ForwardConfig&, ConfigText& to) const override {
    to.number("kWarps", shape_.warps);
    to.number("kStages", shape_.stages);
  }

 private:
  const Shape& shape_;
};

}  // namespace

ForwardChoice choose_forward_sm80(const ForwardRequest& request) {
  const Problem& p = request.problem;
  if (std::string why = tensor_core_obstacle(p, request.tensors.aligned); !why.empty()) {
    return ForwardChoice::refused(std::move(why));
  }
  const auto shapes = shapes_for(p);
  const auto shape = std::ranges::find_if(
      shapes, [&](const Shape& s) { return std::max(p.head_dim, p.head_dim_v) <= s.head_dim; });
  Tiling tiling;
  tiling.rows = shape->rows;
  tiling.keys = shape->keys;
  tiling.threads = 32 * shape->warps;
  tiling.parts = shape->warps;
  tiling.group = packed_group(p, shape->rows, shape->rows, request.tensors.uneven_q);
  tiling.stages = shape->stages;
  tiling.shared_bytes = shared_bytes(p, *shape);
  tiling.reason = shape->reason;
  tiling.spill_bytes = shape->spill_bytes;
  return {.tiling = tiling, .shape = std::make_shared<ForwardSm80>(*shape)};
}

}  // namespace attn::cuda
