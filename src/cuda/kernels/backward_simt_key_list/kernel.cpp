#include "cuda/kernels/backward_simt_key_list/kernel.hpp"

#include "core/ceil_div.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_simt_key_list(const BackwardRequest& request) {
  constexpr int kStoredKeys = 64;  // of a block of threads that stores sums
  BackwardTiling t;
  t.block_m = kStoredKeys;
  t.block_n = 1;
  t.warps = 4;
  // BackwardSimtKeyListLayout
  if (request.gradient != device::Gradient::dk_dv) {
    t.shared_bytes = 4 * t.warps * core::ceil_div(request.features.head_dim, 16) * 16;
  }
  t.reason = "float32 arithmetic without tensor cores; a warp takes one key of the list at a time";
  return {.tiling = t};
}

}  // namespace attn::cuda
