#include "cuda/kernels/backward_sm80_key_list/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/ceil_div.hpp"
#include "cuda/kernel_parts.hpp"
#include "cuda/kernels/shared_memory.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

constexpr int kRows = 16, kKeysOfWarp = 16;
constexpr std::int64_t kMostColumns = 576;

struct Shape {
  int warps, stages;
  std::string_view reason;
};

// The first that fits into shared memory. A thread has 8 numbers of dQ for each 16 columns of its
// warp: 72 at 576 columns and four warps.
constexpr std::array kShapes{
    Shape{4, 2, "16 heads of a query share 64 keys of its list; the next 64 are in flight"},
    Shape{4, 1, "16 heads of a query share 64 keys of its list; one block is what memory holds"},
    Shape{2, 1, "16 heads of a query share 32 keys of its list; one block is what memory holds"},
};

// BackwardSm80KeyListLayout: Q and dO, P and dS, keys, then K and V. Columns are rounded up so that
// each warp has as many.
std::int64_t shared_bytes(const BackwardFeatures& f, const Shape& s) {
  const std::int64_t round = 16 * s.warps, keys = kKeysOfWarp * s.warps;
  const std::int64_t row =
      2 * round * (ceil_div(f.head_dim, round) + ceil_div(f.head_dim_v, round));
  return kRows * (row + 4 * keys) + ceil_div(s.stages * 4 * keys, 128) * 128 +
         s.stages * keys * row;
}

bool set_part(Shape& shape, std::string_view part) {
  if (const int w = number_after(part, "w"); w == 2 || w == 4 || w == 8) {
    shape.warps = w;
  } else if (const int s = number_after(part, "s"); s == 1 || s == 2) {
    shape.stages = s;
  } else {
    return false;
  }
  return true;
}

}  // namespace

BackwardChoice choose_backward_sm80_key_list(const BackwardRequest& request) {
  if (std::string why = tensor_core_obstacle(request.problem, request.tensors, kMostColumns);
      !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  const BackwardFeatures& f = request.features;
  const std::int64_t most = most_shared_bytes(request.arch);
  const auto found =
      std::ranges::find_if(kShapes, [&](const Shape& s) { return shared_bytes(f, s) <= most; });
  Shape shape = found != kShapes.end() ? *found : kShapes.back();
  if (!request.parts.empty()) {
    set_parts("backward_sm80_key_list", request.parts,
              "w2, w4 and w8 (warps, of 16 keys each), s1 and s2 (stages)",
              [&](std::string_view part) { return set_part(shape, part); });
    shape.reason = "named by the caller";
  }
  const std::int64_t bytes = shared_bytes(f, shape);
  if (bytes > most) {
    return BackwardChoice::refused(
        fmt::format("head sizes {} and {} take {} bytes of shared memory; accepted are up to {}",
                    f.head_dim, f.head_dim_v, bytes, most));
  }
  BackwardTiling t;
  t.block_m = kKeysOfWarp * shape.warps;
  t.block_n = kRows;
  t.warps = shape.warps;
  t.stages = shape.stages;
  t.shared_bytes = request.gradient == device::Gradient::dk_dv ? 0 : bytes;
  t.reason = shape.reason;
  return {.tiling = t};
}

}  // namespace attn::cuda
