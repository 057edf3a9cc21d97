#include "cuda/heuristics/backward_config.hpp"

#include <algorithm>

#include "core/ceil_div.hpp"

namespace attn::cuda {
namespace {

using core::ceil_div;

// Bytes of shared memory of each kernel, as its layout in src/cuda/device counts them.
// BackwardSm90Layout has K, V, then rings of Q, dO, P, dS and pieces of dQ, then steps.
std::int64_t sm90_bytes(const BackwardConfig& c) {
  const std::int64_t panels = ceil_div(c.head_dim, 64), panels_v = ceil_div(c.head_dim_v, 64);
  const std::int64_t row_panel = 128 * c.block_n, key_panel = 128 * c.block_m / c.cluster;
  constexpr int kSteps = 16, kStepBytes = 32 + 16;
  std::int64_t bytes = key_panel * (panels + panels_v);
  if (c.cluster > 1) bytes += key_panel * panels / c.cluster + c.stages_p * row_panel;
  bytes += row_panel * (c.stages * panels + c.stages_o * panels_v);
  bytes += 2 * c.stages_p * row_panel * (c.block_m / c.cluster / 64);
  const std::int64_t pieces = ceil_div(c.head_dim, c.piece_columns) / c.cluster;
  const std::int64_t staged = std::min<std::int64_t>(c.stages_dq, 2 * pieces);
  bytes += 4 * staged * c.block_n * std::min(c.head_dim, c.piece_columns);
  bytes += std::int64_t{4} * c.block_n * (c.stages + c.stages_o);
  bytes += kSteps * kStepBytes;
  constexpr std::int64_t kTurns = 4;
  const std::int64_t turns = c.ordered ? kTurns : 0;
  if (c.dropout && !c.ordered && c.score_groups == 1) {
    bytes += 2 * 4 * 128 + 16;  // two words a thread, two barriers
  }
  // K, V, ..., dQ
  const std::int64_t rings = 2 + c.stages + c.stages_o + 3 * c.stages_p + staged + turns;
  return bytes + 16 * rings;
}

// Columns for which rows in shared memory have room: warps take turns at blocks of 16.
int padded(int head_dim, const BackwardConfig& c) {
  const int turns = c.warps / std::min(c.key_warps, c.query_warps);
  return static_cast<int>(ceil_div(head_dim, 16 * turns)) * 16 * turns;
}

// BackwardSm80Layout
std::int64_t sm80_bytes(const BackwardConfig& c) {
  const std::int64_t row = 2 * (padded(c.head_dim, c) + padded(c.head_dim_v, c));
  const std::int64_t stage = c.block_n * (row + 2 * static_cast<std::int64_t>(sizeof(float)));
  return c.block_m * row + std::int64_t{2} * 2 * c.block_n * c.block_m + c.stages * stage;
}

// BackwardSm90BuffersLayout
std::int64_t sm90_buffers_bytes(const BackwardConfig& c) {
  constexpr std::int64_t kPanelColumns = 64, kStepBytes = 32, kBarriers = 16;
  const std::int64_t panels =
      (std::max(c.head_dim, c.head_dim_v) + kPanelColumns - 1) / kPanelColumns;
  const std::int64_t place = 2 * kPanelColumns * panels * (c.block_m + c.block_n);
  return c.stages * (place + kStepBytes + kBarriers);
}

constexpr std::int64_t row_bytes(int head_dim) { return ceil_div(head_dim, 16) * 32; }

// BackwardSm80BuffersLayout
std::int64_t sm80_buffers_bytes(const BackwardConfig& c) {
  return std::int64_t{c.stages} * (c.block_m + c.block_n) *
         (row_bytes(c.head_dim) + row_bytes(c.head_dim_v));
}

// BackwardSm80DeterministicLayout
std::int64_t sm80_deterministic_bytes(const BackwardConfig& c) {
  const std::int64_t row1 = row_bytes(c.head_dim), row2 = row_bytes(c.head_dim_v);
  const std::int64_t rows = c.block_m * (row1 + (c.gradient == device::Gradient::dv ? 0 : row2));
  return rows + std::int64_t{c.stages} * c.block_n * (row1 + row2);
}

// BackwardSimtLayout, which backward_standard has too
std::int64_t simt_bytes(const BackwardConfig& c) {
  constexpr std::int64_t kPiece = 64, kPad = 4;
  const std::int64_t rows = c.block_m + kPad, slots = c.block_n + kPad;
  return 4 * (kPiece * rows + kPiece * slots + c.block_n * rows);
}

// BackwardFlashLayout has K, V, dK, dV, Q and dO, P and dS, LSE and D.
std::int64_t flash_bytes(const BackwardConfig& c) {
  const std::int64_t row = (c.head_dim | 1) + (c.head_dim_v | 1);
  return 4 *
         (2 * c.block_m * row + c.block_n * row + 2 * c.block_m * (c.block_n + 1) + 2 * c.block_n);
}

}  // namespace

std::string_view name(BackwardKernel kernel) noexcept {
  switch (kernel) {
    case BackwardKernel::sm90:
      return "backward_sm90";
    case BackwardKernel::sm80:
      return "backward_sm80";
    case BackwardKernel::sm80_deterministic:
      return "backward_sm80_deterministic";
    case BackwardKernel::sm80_buffers:
      return "backward_sm80_buffers";
    case BackwardKernel::sm90_buffers:
      return "backward_sm90_buffers";
    case BackwardKernel::simt:
      return "backward_simt";
    case BackwardKernel::flash_attention:
      return "backward_flash_attention";
    case BackwardKernel::standard:
      return "backward_standard";
  }
  return {};
}

std::int64_t BackwardConfig::shared_bytes() const noexcept {
  switch (kernel) {
    case BackwardKernel::sm90:
      return sm90_bytes(*this);
    case BackwardKernel::sm80:
      return sm80_bytes(*this);
    case BackwardKernel::sm80_deterministic:
      return sm80_deterministic_bytes(*this);
    case BackwardKernel::sm80_buffers:
      return sm80_buffers_bytes(*this);
    case BackwardKernel::sm90_buffers:
      return sm90_buffers_bytes(*this);
    case BackwardKernel::flash_attention:
      return flash_bytes(*this);
    case BackwardKernel::simt:
    case BackwardKernel::standard:
      break;
  }
  return simt_bytes(*this);
}

}  // namespace attn::cuda
