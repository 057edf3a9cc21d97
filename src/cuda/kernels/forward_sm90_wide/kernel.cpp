#include "cuda/kernels/forward_sm90_wide/kernel.hpp"

#include <fmt/format.h>

#include <array>

#include "core/ceil_div.hpp"
#include "cuda/codegen/wgmma_text.hpp"
#include "cuda/kernels/forward_tiles.hpp"
#include "cuda/kernels/shared_memory.hpp"
#include "cuda/kernels/tensor_core_obstacle.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

constexpr int kRows = 64, kKeys = 64, kWarps = 8, kPanel = 64;  // columns of a panel

// ForwardSm90WideLayout::kColumns.
std::int64_t columns_of_warpgroup(std::int64_t head_dim_v) {
  return ceil_div(head_dim_v, 2 * kPanel) * kPanel;
}

// ForwardSm90WideLayout: Q, for each stage K and V, P, and two numbers of each row.
std::int64_t shared_bytes(const Problem& p, bool v_in_k, int stages) {
  const std::int64_t panels_k = ceil_div(p.head_dim, kPanel);
  const std::int64_t panels_v = v_in_k ? 0 : 2 * columns_of_warpgroup(p.head_dim_v) / kPanel;
  constexpr std::int64_t kPanelBytes = std::int64_t{128} * kKeys;
  return kPanelBytes * (panels_k + stages * (panels_k + panels_v) + 1) + std::int64_t{8} * kRows;
}

class ForwardSm90Wide final : public ForwardShape {
 public:
  ForwardSm90Wide(int stages, bool v_in_k) : stages_(stages), v_in_k_(v_in_k) {}
  void print(const ForwardConfig&, ConfigText& to) const override {
    to.number("kWarps", kWarps);
    to.number("kStages", stages_);
    to.flag("kVInK", v_in_k_);
  }
  std::string declarations(const ForwardConfig& config) const override {
    const ForwardFeatures& f = config.features;
    return "template <class Element, int kColumns>\nstruct ProductSS;\n"
           "template <class Element, int kColumns>\nstruct ProductST;\n" +
           print_product_ss(f.dtype, kKeys) +
           print_product_st(f.dtype, static_cast<int>(columns_of_warpgroup(f.head_dim_v)));
  }

 private:
  const int stages_;
  const bool v_in_k_;
};

}  // namespace

ForwardChoice choose_forward_sm90_wide(const ForwardRequest& request) {
  const Problem p = one_query_each(request.problem);
  constexpr std::int64_t kMostColumns = 576, kMostColumnsV = 512, kFewRows = 32;
  if (std::string why =
          tensor_core_obstacle(p, request.tensors.aligned, kMostColumns, kMostColumnsV);
      !why.empty()) {
    return ForwardChoice::refused(std::move(why));
  }
  if (request.arch.number != 90) {
    return ForwardChoice::refused(
        fmt::format("the architecture is {}; accepted is sm_90a", to_string(request.arch)));
  }
  const std::int64_t group = p.heads_q / p.heads_k;
  if (p.seqlen_q * group <= kFewRows) {
    return ForwardChoice::refused(
        fmt::format("{} rows of Q share the keys of a K, V head; a tile of {} rows takes more than "
                    "{}",
                    p.seqlen_q * group, kRows, kFewRows));
  }
  const bool v_in_k = request.tensors.v_in_k;
  const std::int64_t most = most_shared_bytes(request.arch);
  const int stages = shared_bytes(p, v_in_k, 2) <= most ? 2 : 1;
  if (shared_bytes(p, v_in_k, stages) > most) {
    return ForwardChoice::refused(
        fmt::format("head sizes {} and {} take more shared memory than the {} bytes of {}",
                    p.head_dim, p.head_dim_v, most, to_string(request.arch)));
  }
  const auto tiles = [&](std::int64_t together) {
    return ceil_div(p.seqlen_q * together, kRows) * (group / together);
  };
  Tiling tiling;
  tiling.rows = kRows;
  tiling.keys = kKeys;
  tiling.threads = 32 * kWarps;
  const bool together = p.key_list > 0 || tiles(group) < tiles(1);
  tiling.group = together ? static_cast<int>(group) : 1;
  tiling.stages = stages;
  tiling.shared_bytes = shared_bytes(p, v_in_k, stages);
  tiling.reason = stages == 2 ? "two tiles of K and V in flight"
                              : "one tile of K and V is what shared memory holds";
  return {.tiling = tiling, .shape = std::make_shared<ForwardSm90Wide>(stages, v_in_k)};
}

}  // namespace attn::cuda
