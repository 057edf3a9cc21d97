#include "cuda/kernels/backward_sm90/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/ceil_div.hpp"
#include "cuda/codegen/wgmma_text.hpp"
#include "cuda/kernels/backward_one_pass/kernel.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

constexpr int kQueries = 64;       // rows of one product of a warpgroup
constexpr int kWarps = 16;         // producers, scores, dV, dK
constexpr int kPartColumns = 128;  // of dQ, of one product

// Where tiles take turns though nobody asks for it: up to so many tiles of keys, dense, without
// dropout, and from so many tiles in all on, with which the multiprocessors of an H200 are filled
// 15 times. A pass in order writes and reads 8 bytes an element of dQ less, which is more there
// than turns cost: 1 to 6 % at n 512, nothing at 1024 (bench/results/h200-backward-builds.txt).
// With dropout, score warpgroups would draw its bits. Sequences of other lengths may have fewer
// tiles than are counted.
constexpr std::int64_t kFewKeyTiles = 4, kManyTiles = 2048;

bool is_faster_in_order(const BackwardFeatures& f, const Problem& p,
                        const BackwardSm90Shape& shape) {
  if (f.lengths_differ() || f.dropout) return false;
  const core::Size tiles = core::divide_up(p.seqlen_k, shape.keys) * p.heads_k * p.batch;
  return p.seqlen_k <= kFewKeyTiles * shape.keys && tiles * shape.cluster >= kManyTiles;
}

// BackwardSm90Layout has K, V, then rings of Q, dO, P, dS and pieces of dQ, then steps.
std::int64_t shared_bytes(const BackwardFeatures& f, const BackwardSm90Shape& s, bool ordered) {
  const std::int64_t panels = ceil_div(f.head_dim, 64), panels_v = ceil_div(f.head_dim_v, 64);
  const std::int64_t row_panel = 128 * kQueries, key_panel = 128 * s.keys / s.cluster;
  constexpr int kSteps = 16, kStepBytes = 32 + 16;
  std::int64_t bytes = key_panel * (panels + panels_v);
  if (s.cluster > 1) bytes += key_panel * panels / s.cluster + s.stages_p * row_panel;
  bytes += row_panel * (s.stages_q * panels + s.stages_o * panels_v);
  bytes += 2 * s.stages_p * row_panel * (s.keys / s.cluster / 64);
  const std::int64_t pieces = ceil_div(f.head_dim, s.piece_columns) / s.cluster;
  const std::int64_t staged = std::min<std::int64_t>(s.stages_dq, 2 * pieces);
  bytes += 4 * staged * kQueries * std::min(f.head_dim, s.piece_columns);
  bytes += std::int64_t{4} * kQueries * (s.stages_q + s.stages_o);
  bytes += kSteps * kStepBytes;
  constexpr std::int64_t kTurns = 4;
  const std::int64_t turns = ordered ? kTurns : 0;
  if (f.dropout && !ordered && s.score_groups == 1) {
    bytes += 2 * 4 * 128 + 16;  // two words a thread, two barriers
  }
  // K, V, ..., dQ
  const std::int64_t rings = 2 + s.stages_q + s.stages_o + 3 * s.stages_p + staged + turns;
  return bytes + 16 * rings;
}

}  // namespace

BackwardChoice choose_backward_sm90(const BackwardRequest& request) {
  const Problem& p = request.problem;
  const BackwardFeatures& f = request.features;
  constexpr std::int64_t kMostColumns = 256;
  if (std::string why = one_pass_obstacle(p, request.tensors, kMostColumns); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  if (request.arch.number != 90) {
    return BackwardChoice::refused(
        fmt::format("the architecture is {}; accepted is sm_90a", to_string(request.arch)));
  }
  if (!request.tensors.mapped) {
    return BackwardChoice::refused(
        "the driver makes no tensor map of q, k, v or d_o; accepted are strides that it takes");
  }
  BackwardSm90Shape shape = with_parts(backward_sm90_shape(p), request.parts);
  if (std::string why = obstacle_of(shape, p); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  BackwardChoice choice;
  // Order has places of its own for dQ, which a name may set otherwise.
  choice.ordered =
      request.deterministic || (request.parts.empty() && is_faster_in_order(f, p, shape));
  // A turn is of one piece (schedule/dq_turns.cuh), or of all that one of a pair adds in a step.
  if (choice.ordered && shape.cluster == 1) {
    shape.piece_columns = kPartColumns;
    shape.stages_dq = shape.score_groups;
  }
  BackwardTiling& t = choice.tiling;
  t.block_m = shape.keys;
  t.block_n = kQueries;
  t.warps = kWarps;
  t.stages = shape.stages_q;
  t.cluster = shape.cluster;
  t.shared_bytes = shared_bytes(f, shape, choice.ordered);
  t.l2_megabytes = shape.l2_megabytes;
  t.reason = shape.reason;
  t.spill_bytes = shape.spill_bytes;
  if (std::string why = shared_memory_obstacle(t.shared_bytes, request.arch); !why.empty()) {
    return BackwardChoice::refused(std::move(why));
  }
  choice.shape = std::make_shared<BackwardSm90>(shape);
  return choice;
}

std::optional<BackwardMaps> backward_sm90_maps(const BackwardConfig& config, const Problem& p,
                                               const Inputs& inputs, const Tensor& d_o) {
  const BackwardTiling& t = config.tiling;
  return backward_maps(p, inputs, d_o, t.block_n, t.block_m / t.cluster);
}

void BackwardSm90::print(const BackwardConfig& c, ConfigText& to) const {
  // f16 does not scale late: its smallest numbers would lose digits of dS before they are scaled.
  const bool scales_late = c.features.dropout && c.features.dtype == DType::bf16;
  print_one_pass(c, shape.piece_columns, scales_late, to);
  to.number("kScoreGroups", shape.score_groups);
  to.number("kCluster", shape.cluster);
  to.number("kStagesQ", shape.stages_q);
  to.number("kStagesO", shape.stages_o);
  to.number("kStagesP", shape.stages_p);
  to.number("kStagesDq", shape.stages_dq);
  to.number("kProducerRegisters", shape.producer_registers);
  to.number("kScoreRegisters", shape.score_registers);
  to.number("kGradientRegisters", shape.gradient_registers);
  to.flag("kMaskHeads", c.features.mask_heads);
  to.flag("kMaskBatches", c.features.mask_batches);
}

// Warpgroup products, each shape once.
std::string BackwardSm90::declarations(const BackwardConfig& c) const {
  constexpr int kDqColumns = 128, kGradientColumns = 192;
  const BackwardFeatures& f = c.features;
  std::string text =
      "template <class Element, int kColumns>\nstruct ProductSS;\n"
      "template <class Element, int kColumns>\nstruct ProductRS;\n"
      "template <class Element, int kColumns>\nstruct ProductST;\n"
      "template <class Element, int kColumns>\nstruct ProductTT;\n";
  text += print_product_ss(f.dtype, shape.keys / shape.cluster);
  std::set<int> columns;  // of the gradients' products, as BackwardSm90GradientGroup splits them
  for (const int d : {f.head_dim, f.head_dim_v}) {
    if (d > kGradientColumns) {
      columns.insert({kDqColumns, d - kDqColumns});
    } else {
      columns.insert(d);
    }
  }
  if (shape.score_groups > 1 && std::max(f.head_dim, f.head_dim_v) <= 64) {
    columns = {shape.keys};  // BackwardSm90TransposedGroup
  }
  for (const int d : columns) text += print_product_tt(f.dtype, d);
  if (shape.cluster > 1) text += print_product_st(f.dtype, kDqColumns);
  text += print_product_rs(f.dtype, std::min(f.head_dim, kDqColumns));
  const int rest = f.head_dim % kDqColumns;
  if (f.head_dim > kDqColumns && rest != 0) text += print_product_rs(f.dtype, rest);
  return text;
}

}  // namespace attn::cuda
