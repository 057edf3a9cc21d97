#include "cuda/heuristics/forward_config.hpp"

#include <algorithm>

namespace attn::cuda {
namespace {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

// Bytes of shared memory of each kernel, as its layout in src/cuda/device counts them.
// ForwardSm90Layout has Q, K, V in panels of 64 columns, barriers, four tiles at hand.
std::int64_t sm90_bytes(const ForwardConfig& c) {
  const std::int64_t panels_k = divide_up(c.features.head_dim, 64);
  const std::int64_t panels_v = divide_up(c.features.head_dim_v, 64);
  const std::int64_t qs = std::int64_t{c.stages_q} * c.warps / 4;
  const std::int64_t barriers = 16 * qs + 16 * (c.stages_k + c.stages) + 72;
  return qs * 64 * 128 * panels_k +
         c.block_n * 128 * (c.stages_k * panels_k + c.stages * panels_v) + round_up(barriers, 16) +
         std::int64_t{4} * (48 + 16 * c.warps / 4) + 32;
}

// ForwardSm80Layout has rows of whole steps of 16 columns.
std::int64_t sm80_bytes(const ForwardConfig& c) {
  const std::int64_t row_k = round_up(c.features.head_dim, 16) * 2;
  const std::int64_t row_v = round_up(c.features.head_dim_v, 16) * 2;
  return c.block_m * row_k + std::int64_t{c.stages} * c.block_n * (row_k + row_v);
}

// ForwardFewRowsLayout: stages of each warp, or O of each warp in rows of float32 and the sums of
// each.
std::int64_t few_rows_bytes(const ForwardConfig& c) {
  const std::int64_t row_k = round_up(c.features.head_dim, 16) * 2;
  const std::int64_t row_v = round_up(c.features.head_dim_v, 16) * 2;
  const std::int64_t merged =
      std::int64_t{c.warps} * c.block_m * (4 * (std::int64_t{c.features.head_dim_v} + 8) + 16);
  return std::max(std::int64_t{c.stages} * c.block_n * (row_k + row_v), merged);
}

constexpr std::int64_t kSimtPiece = 64, kSimtPad = 4;

// ForwardSimtLayout is that of forward_standard too.
std::int64_t simt_bytes(const ForwardConfig& c) {
  const std::int64_t rows = c.block_m + kSimtPad, slots = c.block_n + kSimtPad;
  return 4 * (c.features.head_dim * rows + c.block_n * rows + kSimtPiece * slots);
}

// ForwardFlashAttention has Q and P as forward_simt has them, then K and V as they are stored.
std::int64_t flash_bytes(const ForwardConfig& c) {
  const std::int64_t rows = c.block_m + kSimtPad, slots = c.block_n + kSimtPad;
  const std::int64_t keys =
      c.features.head_dim * slots + c.block_n * round_up(c.features.head_dim_v, 64);
  return 4 * (c.features.head_dim + c.block_n) * rows +
         c.stages * keys * static_cast<std::int64_t>(size_of(c.features.dtype));
}

}  // namespace

std::string_view name(ForwardKernel kernel) noexcept {
  switch (kernel) {
    case ForwardKernel::sm90:
      return "forward_sm90";
    case ForwardKernel::sm80:
      return "forward_sm80";
    case ForwardKernel::few_rows:
      return "forward_sm80_few_rows";
    case ForwardKernel::flash_attention:
      return "forward_flash_attention";
    case ForwardKernel::standard:
      return "forward_standard";
    case ForwardKernel::simt:
      break;
  }
  return "forward_simt";
}

int ForwardConfig::threads() const noexcept {
  return 32 * warps + (kernel == ForwardKernel::sm90 ? 128 : 0);
}

int ForwardConfig::keys_at_once() const noexcept {
  return kernel == ForwardKernel::flash_attention ? block_n * stages : block_n;
}

int ForwardConfig::parts() const noexcept {
  if (kernel == ForwardKernel::few_rows) return 1;
  return kernel == ForwardKernel::sm90 ? warps / 4 : warps;
}

bool ForwardConfig::stores_boxes() const noexcept {
  return kernel == ForwardKernel::sm90 && stages_q > 1 && !splits && group == 1 &&
         !features.packed_q &&
         divide_up(features.head_dim_v, 64) <= divide_up(features.head_dim, 64);
}

std::int64_t ForwardConfig::shared_bytes() const noexcept {
  switch (kernel) {
    case ForwardKernel::sm90:
      return sm90_bytes(*this);
    case ForwardKernel::sm80:
      return sm80_bytes(*this);
    case ForwardKernel::few_rows:
      return few_rows_bytes(*this);
    case ForwardKernel::flash_attention:
      return flash_bytes(*this);
    case ForwardKernel::simt:
    case ForwardKernel::standard:
      break;
  }
  return simt_bytes(*this);
}

}  // namespace attn::cuda
