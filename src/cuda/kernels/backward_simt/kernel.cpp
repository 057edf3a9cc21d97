#include "cuda/kernels/backward_simt/kernel.hpp"

#include "cuda/kernels/backward_launches.hpp"

namespace attn::cuda {
namespace {

using device::Gradient;

// A thread holds block_m / 8 rows of 4 of each 64 columns: at most 128 registers.
constexpr int kRows = 64, kRowsOfWide = 32, kWide = 128, kColumns = 64;
constexpr int kWarps = 4;

// Columns of the gradient that a thread block holds.
int width(const BackwardRequest& request) {
  const Gradient gradient = request.gradient;
  if (gradient == Gradient::buffers || gradient == Gradient::ds) return 0;
  return gradient == Gradient::dv ? request.features.head_dim_v : request.features.head_dim;
}

// BackwardSimtLayout
std::int64_t shared_bytes(const BackwardTiling& t) {
  constexpr std::int64_t kPiece = 64, kPad = 4;
  const std::int64_t rows = t.block_m + kPad, slots = t.block_n + kPad;
  return 4 * (kPiece * rows + kPiece * slots + t.block_n * rows);
}

}  // namespace

BackwardChoice choose_backward_simt(const BackwardRequest& request) {
  BackwardTiling t;
  t.block_m = width(request) > kWide ? kRowsOfWide : kRows;
  t.block_n = kColumns;
  t.warps = kWarps;
  t.shared_bytes = shared_bytes(t);
  t.reason =
      "float32 arithmetic without tensor cores; each gradient has a pass of its own, so that "
      "nothing is added in memory";
  return {.tiling = t};
}

std::vector<Gradient> backward_simt_launches(const Problem&, const AskedGradients& asked) {
  constexpr bool kTogether = false;
  return launch_each(asked, kTogether);
}

}  // namespace attn::cuda
