#include "cuda/kernels/forward_sm90/kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attn/error.hpp"
#include "core/ceil_div.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/codegen/wgmma_text.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

// Whether rows may have to be computed again: under a mask, and where references are judged late
// (device/kernels/forward_sm90/tiles.cuh, kFollowed).
bool is_followed(const ForwardFeatures& f, const Problem& p) {
  return f.hides_keys || (f.dtype == DType::bf16 && p.score.empty());
}

// Random bits come for 64 keys at a time, of which a tile may use 32.
int keys_with_dropout(int keys, std::string_view parts) {
  constexpr int kFewest = 32, kKeysAtOnce = 64;
  if (keys < kFewest) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel is 'forward_sm90/{}', of {} keys, and the problem has dropout; "
                            "accepted with it are n{} to n256",
                            parts, keys, kFewest));
  }
  return keys < kKeysAtOnce ? kFewest : keys / kKeysAtOnce * kKeysAtOnce;
}

constexpr int kGatheredKeys = 64;  // device/schedule/gathered_blocks.cuh

// Whether a tile of keys is best made of two blocks of 64 that its rows see, wherever they lie
// (device/schedule/gathered_blocks.cuh). Their lists should not outgrow what they save; they are
// counted for each batch entry, as lengths of a call may ask for, so that a plan, which does not
// know these, has the workspace of what a call chooses.
bool gathers_blocks(const ForwardFeatures& f, const Problem& p, int keys) {
  constexpr double kMostBytes = 256 << 20;
  const double blocks = std::ceil(static_cast<double>(p.seqlen_k) / kGatheredKeys);
  const double lists = std::ceil(static_cast<double>(p.seqlen_q) / 128) *
                       static_cast<double>(f.mask_heads ? p.heads_q : 1) *
                       static_cast<double>(p.batch);
  return keys == 2 * kGatheredKeys && f.mask_scans_buffers && !f.dropout &&
         holds(Condition::key_blocks_of_64, p) && (p.score.empty() || !loads_elements(p.score)) &&
         sizeof(std::int32_t) * blocks * lists <= kMostBytes;
}

// ForwardSm90Layout: Q, K, V in panels of 64 columns, and the rest.
std::int64_t shared_bytes(const ForwardFeatures& f, const ForwardSm90Shape& s, int keys) {
  const std::int64_t panels_k = ceil_div(f.head_dim, 64), panels_v = ceil_div(f.head_dim_v, 64);
  const std::int64_t qs = std::int64_t{s.stages_q} * s.warpgroups;
  return qs * 64 * 128 * panels_k + keys * 128 * (s.stages_k * panels_k + s.stages_v * panels_v) +
         forward_sm90_barrier_bytes(s);
}

}  // namespace

bool fit_pages(int& keys, int& page_rows, std::int64_t page_size) {
  const int most = keys;
  for (const int fewer : {128, 64}) {
    if (fewer > std::max(most, 64)) continue;
    keys = fewer;
    if (page_size % fewer == 0) {
      page_rows = fewer;
      return true;
    }
    if (fewer % page_size == 0 && page_size % 8 == 0) {
      page_rows = static_cast<int>(page_size);
      return true;
    }
  }
  return false;
}

std::int64_t forward_sm90_barrier_bytes(const ForwardSm90Shape& s) {
  const std::int64_t barriers =
      std::int64_t{16} * s.stages_q * s.warpgroups + 16 * (s.stages_k + s.stages_v) + 72;
  return ceil_div(barriers, 16) * 16 + std::int64_t{4} * (48 + 16 * s.warpgroups) + 32 + 16 * 17;
}

ForwardChoice choose_forward_sm90(const ForwardRequest& request) {
  const Problem& p = request.problem;
  const ForwardFeatures& f = request.features;
  if (std::string why = tensor_core_obstacle(p, request.tensors.aligned); !why.empty()) {
    return ForwardChoice::refused(std::move(why));
  }
  if (request.arch.number != 90) {
    return ForwardChoice::refused(
        fmt::format("the architecture is {}; accepted is sm_90a", to_string(request.arch)));
  }
  const auto widest = static_cast<int>(std::max(p.head_dim, p.head_dim_v));
  const auto rows = forward_sm90_shapes();
  const auto row = std::ranges::find_if(rows, [&](const ForwardSm90Shape& s) {
    // The largest scores take registers, as elements that the score loads do. Three warpgroups, and
    // more than 128 keys, leave none for them.
    if (f.max_logit && (s.warpgroups > 2 || s.block_n > 128)) return false;
    const bool for_registers = f.max_logit && s.when == Condition::score_of_elements;
    return widest <= s.head_dim && (for_registers || holds(s.when, p));
  });
  auto made = std::make_shared<ForwardSm90>(with_parts(*row, request.parts));
  const ForwardSm90Shape& s = made->shape;
  Tiling tiling;
  tiling.rows = 64 * s.warpgroups;
  tiling.keys = f.dropout ? keys_with_dropout(s.block_n, request.parts) : s.block_n;
  int box = tiling.keys;
  if (!request.splits && gathers_blocks(f, p, tiling.keys)) {
    made->gathers = true;
    tiling.gathered_keys = box = kGatheredKeys;
  }
  if (f.paged && !fit_pages(box, made->page_rows, p.page_size)) {
    return ForwardChoice::refused("no tile shape suits page_size " + std::to_string(p.page_size));
  }
  if (!made->gathers) tiling.keys = box;
  tiling.threads = 128 * (s.warpgroups + 1);
  tiling.parts = s.warpgroups;
  tiling.group = packed_group(p, tiling.rows, 64, request.tensors.uneven_q);
  tiling.stages = s.stages_v;
  tiling.shared_bytes = shared_bytes(f, s, tiling.keys);
  if (tiling.rows == 128 && widest > 64 && widest <= 128) tiling.tiles_together = 64;
  tiling.reason = s.reason;
  tiling.spill_bytes = s.spill_bytes + (is_followed(f, p) ? kForwardSm90FollowerSpills : 0);
  made->drops_by_product = f.dropout && !f.dropout_flipped && s.drops_by_product;
  made->stores_boxes = s.stages_q > 1 && !request.splits && f.type_o == f.dtype &&
                       tiling.group == 1 && !f.packed_q &&
                       ceil_div(f.head_dim_v, 64) <= ceil_div(f.head_dim, 64);
  // Tiles of one to four blocks: +1 % at 512 keys, head sizes 64 and 128.
  if (widest <= 128 && holds(Condition::few_masked_keys, p)) made->near_blocks = 1;
  return {.tiling = tiling, .shape = std::move(made)};
}

void ForwardSm90::print(const ForwardConfig&, ConfigText& to) const {
  to.number("kConsumers", shape.warpgroups);
  to.number("kStagesK", shape.stages_k);
  to.number("kStagesV", shape.stages_v);
  to.number("kStagesQ", shape.stages_q);
  to.number("kPageRows", page_rows);
  to.flag("kGathers", gathers);
  to.number("kProducerRegisters", shape.producer_registers);
  to.number("kConsumerRegisters", shape.consumer_registers);
  to.flag("kTakeTurns", shape.take_turns);
  to.number("kNearBlocks", near_blocks);
  to.flag("kStoresBoxes", stores_boxes);
  to.flag("kDropsByProduct", drops_by_product);
  to.flag("kSumsByProduct", sums_by_product);
  to.number("kTransposers", shape.transposers);
}

std::string product_declarations() {
  return "template <class Element, int kColumns>\nstruct ProductSS;\n"
         "template <class Element, int kColumns>\nstruct ProductRS;\n"
         "template <class Element, int kColumns>\nstruct ProductWithSums;\n";
}

std::string ForwardSm90::declarations(const ForwardConfig& config) const {
  return product_declarations() + print_product_ss(config.features.dtype, config.tiling.keys) +
         print_product_rs(config.features.dtype, config.features.head_dim_v);
}

}  // namespace attn::cuda
