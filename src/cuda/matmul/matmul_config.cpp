#include "cuda/matmul/matmul_config.hpp"

#include <algorithm>

#include "core/text/enum_names.hpp"

namespace attn::cuda {
namespace {

constexpr core::EnumName<MatmulRung> kRungs[] = {
    {MatmulRung::naive, "naive"},
    {MatmulRung::coalesced, "coalesced"},
    {MatmulRung::shared_tiles, "shared_tiles"},
    {MatmulRung::register_tiles, "register_tiles"},
    {MatmulRung::vector_loads, "vector_loads"},
    {MatmulRung::mma_sync, "mma_sync"},
    {MatmulRung::cp_async, "cp_async"},
    {MatmulRung::ldmatrix, "ldmatrix"},
    {MatmulRung::pipelined, "pipelined"},
    {MatmulRung::tma_wgmma, "tma_wgmma"},
    {MatmulRung::warp_specialised, "warp_specialised"},
    {MatmulRung::persistent, "persistent"},
    {MatmulRung::cluster_multicast, "cluster_multicast"},
    {MatmulRung::split_k, "split_k"},
    {MatmulRung::stream_k, "stream_k"}};

}  // namespace

std::string_view name(MatmulRung rung) noexcept { return core::name_of(kRungs, rung); }

std::vector<std::string> cuda_matmul_rungs() {
  std::vector<std::string> names;
  for (const auto& row : kRungs) names.emplace_back(row.name);
  return names;
}

bool is_cuda_matmul_rung(std::string_view text) noexcept {
  return std::ranges::any_of(kRungs, [&](const auto& row) { return row.name == text; });
}

MatmulRung parse_matmul_rung(std::string_view text) {
  return core::parse_name(kRungs, "rung", text);
}

}  // namespace attn::cuda
