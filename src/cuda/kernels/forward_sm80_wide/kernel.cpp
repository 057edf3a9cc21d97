#include "cuda/kernels/forward_sm80_wide/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/ceil_div.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/kernels/shared_memory.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

struct Shape {
  int rows, keys, warps, stages;
  bool q_in_registers;
  std::string_view reason;
};

// The first that has enough rows, or all that there are, and fits into shared memory. O takes rows
// / 16 * head_dim_v / 16 / warps * 8 registers of a thread: 128 at most.
constexpr std::array kShapes{
    Shape{16, 64, 8, 3, true, "few rows, which wait for K and V: three tiles of these in flight"},
    Shape{16, 64, 8, 2, true, "few rows, which wait for K and V: two tiles of these in flight"},
    Shape{16, 64, 8, 1, false, "few rows; one tile of K and V is what shared memory holds"},
    Shape{16, 32, 4, 1, false, "few rows of few keys, in 99 KB of shared memory"},
    Shape{32, 64, 8, 2, false, "two tiles of K and V in flight"},
    Shape{32, 64, 8, 1, false, "one tile of K and V is what shared memory holds"},
    Shape{32, 32, 8, 1, false, "32 keys are what shared memory holds"},
    Shape{64, 64, 8, 2, false, "64 rows share a tile of K and V; two of these in flight"},
    Shape{64, 64, 8, 1, false, "64 rows share a tile of K and V"},
    Shape{64, 32, 8, 2, false, "64 rows share a tile of 32 keys; two of these in flight"},
    Shape{64, 32, 8, 1, false, "64 rows share a tile of 32 keys"},
};

// ForwardSm80WideLayout: Q unless registers have it, for each stage K and V, P, and numbers of
// rows. Rows of Q and K have whole steps of 32 columns, those of V of 16.
std::int64_t shared_bytes(const Problem& p, bool v_in_k, const Shape& s) {
  const std::int64_t row_k = (p.head_dim + 31) / 32 * 64;
  const std::int64_t row_v = v_in_k ? 0 : (p.head_dim_v + 15) / 16 * 32;
  const std::int64_t numbers = s.warps / (s.rows / 16) + 1;
  return s.rows * ((s.q_in_registers ? 0 : row_k) + 2 * s.keys + 4 * numbers) +
         std::int64_t{s.stages} * s.keys * (row_k + row_v);
}

class ForwardSm80Wide final : public ForwardShape {
 public:
  ForwardSm80Wide(const Shape& shape, bool v_in_k) : shape_(shape), v_in_k_(v_in_k) {}
  void print(const ForwardConfig&, ConfigText& to) const override {
    to.number("kWarps", shape_.warps);
    to.number("kStages", shape_.stages);
    to.flag("kQInRegisters", shape_.q_in_registers);
    to.flag("kVInK", v_in_k_);
  }

 private:
  const Shape& shape_;
  const bool v_in_k_;
};

}  // namespace

ForwardChoice choose_forward_sm80_wide(const ForwardRequest& request) {
  const Problem p = one_query_each(request.problem);
  constexpr std::int64_t kMostColumns = 576, kMostColumnsV = 512;
  if (std::string why =
          tensor_core_obstacle(p, request.tensors.aligned, kMostColumns, kMostColumnsV);
      !why.empty()) {
    return ForwardChoice::refused(std::move(why));
  }
  // Rows of a K, V head's query heads follow each other, whole tiles or not.
  const std::int64_t group = p.heads_q / p.heads_k, most = most_shared_bytes(request.arch);
  const auto tiles = [&](std::int64_t rows, std::int64_t together) {
    return ceil_div(p.seqlen_q * together, rows) * (group / together);
  };
  const auto fits = [&](const Shape& s) {
    return shared_bytes(p, request.tensors.v_in_k, s) <= most;
  };
  const auto has_all = [&](const Shape& s) { return s.rows >= p.seqlen_q * group; };
  auto shape = std::ranges::find_if(kShapes, [&](const Shape& s) { return has_all(s) && fits(s); });
  if (shape == kShapes.end()) {
    const auto last = std::ranges::find_if(kShapes.rbegin(), kShapes.rend(), fits);
    if (last == kShapes.rend()) {
      return ForwardChoice::refused(
          fmt::format("head sizes {} and {} take more shared memory than the {} bytes of {}",
                      p.head_dim, p.head_dim_v, most, to_string(request.arch)));
    }
    // The first of those with as many rows.
    shape = std::ranges::find_if(kShapes,
                                 [&](const Shape& s) { return s.rows == last->rows && fits(s); });
  }
  Tiling tiling;
  tiling.rows = shape->rows;
  tiling.keys = shape->keys;
  tiling.threads = 32 * shape->warps;
  const bool together = p.key_list > 0 || tiles(shape->rows, group) < tiles(shape->rows, 1);
  tiling.group = together ? static_cast<int>(group) : 1;
  tiling.stages = shape->stages;
  tiling.shared_bytes = shared_bytes(p, request.tensors.v_in_k, *shape);
  tiling.reason = shape->reason;
  return {.tiling = tiling,
          .shape = std::make_shared<ForwardSm80Wide>(*shape, request.tensors.v_in_k)};
}

}  // namespace attn::cuda
