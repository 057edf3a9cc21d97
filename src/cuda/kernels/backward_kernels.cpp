#include <algorithm>
#include <array>

#include "cuda/kernels/backward_flash_attention/kernel.hpp"
#include "cuda/kernels/backward_kernel.hpp"
#include "cuda/kernels/backward_launches.hpp"
#include "cuda/kernels/backward_list_sums.hpp"
#include "cuda/kernels/backward_one_pass/kernel.hpp"
#include "cuda/kernels/backward_simt/kernel.hpp"
#include "cuda/kernels/backward_simt_key_list/kernel.hpp"
#include "cuda/kernels/backward_sm80/kernel.hpp"
#include "cuda/kernels/backward_sm80_buffers/kernel.hpp"
#include "cuda/kernels/backward_sm80_deterministic/kernel.hpp"
#include "cuda/kernels/backward_sm80_key_list/kernel.hpp"
#include "cuda/kernels/backward_sm90/kernel.hpp"
#include "cuda/kernels/backward_sm90_buffers/kernel.hpp"
#include "cuda/kernels/backward_standard/kernel.hpp"

namespace attn::cuda {

std::span<const BackwardKernel> backward_kernels() noexcept {
  static constexpr std::string_view kOnePass =
      "one pass over S: dK and dV are summed in registers, dQ in memory in float32";
  static constexpr std::string_view kPassEach =
      "{} passes over S: each gradient is summed in registers, in a fixed order";
  static constexpr std::string_view kLists =
      "one pass over the lists of keys: dQ is summed in registers, dK and dV in memory in float32, "
      "in no fixed order, so that their last bits may differ between calls";
  static constexpr std::array kKernels{
      // Hopper.
      BackwardKernel{.name = "backward_sm90",
                     .choose = choose_backward_sm90,
                     .launches = one_launch,
                     .passes = kOnePass,
                     .maps = backward_sm90_maps,
                     .workspace = one_pass_workspace,
                     .place = place_one_pass,
                     .one_pass = true,
                     .query_words = "backward_sm90_words",
                     .takes_parts = true,
                     .stays = true},
      // mma.sync, any architecture from 8.0 on.
      BackwardKernel{.name = "backward_sm80",
                     .choose = choose_backward_sm80,
                     .launches = one_launch,
                     .passes = kOnePass,
                     .workspace = one_pass_workspace,
                     .place = place_one_pass,
                     .one_pass = true,
                     .takes_parts = true},
      BackwardKernel{.name = "backward_sm80_deterministic",
                     .choose = choose_backward_sm80_deterministic,
                     .launches = backward_sm80_deterministic_launches,
                     .passes = kPassEach,
                     .reads_row_terms = true},
      // Keys by list.
      BackwardKernel{.name = "backward_sm80_key_list",
                     .choose = choose_backward_sm80_key_list,
                     .launches = list_launches,
                     .passes = kLists,
                     .workspace = list_sums_workspace,
                     .place = place_list_sums,
                     .reads_row_terms = true,
                     .takes_parts = true,
                     .takes_key_lists = true},
      BackwardKernel{.name = "backward_simt_key_list",
                     .choose = choose_backward_simt_key_list,
                     .launches = list_launches,
                     .passes = kLists,
                     .workspace = list_sums_workspace,
                     .place = place_list_sums,
                     .reads_row_terms = true,
                     .takes_key_lists = true,
                     .scalar = true},
      // Gradients of the buffers that a score reads, on Hopper and by mma.sync.
      BackwardKernel{.name = "backward_sm90_buffers",
                     .choose = choose_backward_sm90_buffers,
                     .maps = backward_sm90_buffers_maps,
                     .stays = true,
                     .gives_buffers = true,
                     .beside = "backward_sm90",
                     .full_tiles = 132},
      BackwardKernel{.name = "backward_sm80_buffers",
                     .choose = choose_backward_sm80_buffers,
                     .gives_buffers = true},
      // float32, and whatever the others do not take.
      BackwardKernel{.name = "backward_simt",
                     .choose = choose_backward_simt,
                     .launches = backward_simt_launches,
                     .passes = kPassEach,
                     .reads_row_terms = true,
                     .scalar = true,
                     .gives_buffers = true},
      // The papers' other orders.
      BackwardKernel{.name = "backward_flash_attention",
                     .algorithm = Algorithm::flash_attention,
                     .choose = choose_backward_flash_attention,
                     .launches = one_launch,
                     .passes = "one pass over S: dK and dV are summed in shared memory, dQ in "
                               "memory in float32, all in a fixed order",
                     .workspace = backward_flash_attention_workspace,
                     .place = place_backward_flash_attention,
                     .takes_parts = true,
                     .tile_is_head = true,
                     .scalar = true},
      BackwardKernel{.name = "backward_standard",
                     .algorithm = Algorithm::standard,
                     .choose = choose_backward_simt,
                     .launches = backward_standard_launches,
                     .passes = "P and dS, an element for each query and key, go through memory in "
                               "float32",
                     .workspace = backward_standard_workspace,
                     .place = place_backward_standard,
                     .scalar = true},
  };
  return kKernels;
}

const BackwardKernel* find_backward_kernel(std::string_view name) noexcept {
  const auto all = backward_kernels();
  const auto found = std::ranges::find(all, name, &BackwardKernel::name);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace attn::cuda
