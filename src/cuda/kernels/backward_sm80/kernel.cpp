#include "cuda/kernels/backward_sm80/kernel.hpp"

#include <fmt/format.h>

#include <utility>

#include "cuda/kernels/backward_one_pass/kernel.hpp"
#include "cuda/kernels/shared_memory.hpp"

namespace attn::cuda {
namespace {

constexpr int kPieceColumns = 128;  // of dQ that are added at a time

}  // namespace

BackwardChoice choose_backward_sm80(const BackwardRequest& request) {
  const Problem& p = request.problem;
  constexpr std::int64_t kMostColumns = 576;
  if (std::string why = one_pass_obstacle(p, request.tensors, kMostColumns); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  if (request.deterministic) {
    return BackwardChoice::refused(
        "deterministic is true; accepted is false, as dQ is added to memory in no fixed order");
  }
  const BackwardSm80Shape* const row = backward_sm80_shape(p, request.arch);
  if (row == nullptr) {
    return BackwardChoice::refused(fmt::format(
        "head_dim is {} and head_dim_v {} on {}; accepted is what {} bytes of shared memory hold",
        p.head_dim, p.head_dim_v, to_string(request.arch), most_shared_bytes(request.arch)));
  }
  BackwardSm80Shape shape = with_parts(*row, request.parts);
  if (std::string why = obstacle_of(shape); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  shape.store_matrices = shape.store_matrices && request.arch.number >= 90;
  BackwardTiling t;
  t.block_m = shape.keys;
  t.block_n = shape.queries;
  t.warps = shape.warps;
  t.stages = shape.stages;
  t.shared_bytes = shared_bytes(shape, p);
  t.l2_megabytes = shape.l2_megabytes;
  t.reason = shape.reason;
  t.spill_bytes = shape.spill_bytes;
  if (std::string why = shared_memory_obstacle(t.shared_bytes, request.arch); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  return {.tiling = t, .shape = std::make_shared<BackwardSm80>(shape)};
}

void BackwardSm80::print(const BackwardConfig& c, ConfigText& to) const {
  constexpr bool kScalesLate = false;
  print_one_pass(c, kPieceColumns, kScalesLate, to);
  to.number("kScoreWarps", shape.score_warps);
  to.number("kKeyWarps", shape.key_warps);
  to.number("kQueryWarps", shape.query_warps);
  to.flag("kStoreMatrices", shape.store_matrices);
  to.flag("kSplitScores", shape.split_scores);
}

}  // namespace attn::cuda
