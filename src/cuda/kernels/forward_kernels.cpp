#include <algorithm>
#include <array>

#include "cuda/kernels/forward_flash_attention/kernel.hpp"
#include "cuda/kernels/forward_kernel.hpp"
#include "cuda/kernels/forward_simt/kernel.hpp"
#include "cuda/kernels/forward_sm80/kernel.hpp"
#include "cuda/kernels/forward_sm80_few_rows/kernel.hpp"
#include "cuda/kernels/forward_sm80_wide/kernel.hpp"
#include "cuda/kernels/forward_sm90/kernel.hpp"
#include "cuda/kernels/forward_sm90_float8/kernel.hpp"
#include "cuda/kernels/forward_sm90_wide/kernel.hpp"
#include "cuda/kernels/forward_standard/kernel.hpp"

namespace attn::cuda {

std::span<const ForwardKernel> forward_kernels() noexcept {
  static constexpr std::array kKernels{
      // Decoding, by mma.sync.
      ForwardKernel{.name = "forward_sm80_few_rows",
                    .choose = choose_forward_sm80_few_rows,
                    .choose_splits = split_forward_sm80_few_rows,
                    .begins_early = true,
                    .takes_pieces = true,
                    .takes_key_lists = true,
                    .takes_cache_types = true},
      // Hopper.
      ForwardKernel{.name = "forward_sm90_float8",
                    .choose = choose_forward_sm90_float8,
                    .takes_parts = true,
                    .reads_maps = true,
                    .stays = true,
                    .takes_float8 = true,
                    .bounds_keys = true},
      ForwardKernel{.name = "forward_sm90",
                    .choose = choose_forward_sm90,
                    .takes_parts = true,
                    .reads_maps = true,
                    .stays = true,
                    .tiles_of_max_logit = true,
                    .bounds_keys = true},
      // mma.sync, any architecture from 8.0 on.
      ForwardKernel{.name = "forward_sm80", .choose = choose_forward_sm80},
      // Heads of more than 256 columns, on Hopper and by mma.sync.
      ForwardKernel{
          .name = "forward_sm90_wide", .choose = choose_forward_sm90_wide, .takes_key_lists = true},
      ForwardKernel{
          .name = "forward_sm80_wide", .choose = choose_forward_sm80_wide, .takes_key_lists = true},
      // float32, and whatever the others do not take.
      ForwardKernel{.name = "forward_simt",
                    .choose = choose_forward_simt,
                    .takes_key_lists = true,
                    .takes_cache_types = true},
      // The papers' other orders.
      ForwardKernel{.name = "forward_flash_attention",
                    .algorithm = Algorithm::flash_attention,
                    .choose = choose_forward_flash_attention,
                    .workspace = forward_flash_attention_workspace,
                    .place = place_forward_flash_attention,
                    .takes_parts = true,
                    .tile_is_head = true},
      ForwardKernel{.name = "forward_standard",
                    .algorithm = Algorithm::standard,
                    .choose = choose_forward_standard,
                    .workspace = forward_standard_workspace,
                    .place = place_forward_standard,
                    .launches = 3},
  };
  return kKernels;
}

const ForwardKernel* find_forward_kernel(std::string_view name) noexcept {
  const auto all = forward_kernels();
  const auto found = std::ranges::find(all, name, &ForwardKernel::name);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace attn::cuda
