#include "cuda/backward/workspace.hpp"

#include <algorithm>

#include "cuda/backward/buffers.hpp"
#include "cuda/codegen/expression_factors.hpp"
#include "cuda/kernels/backward_one_pass/sizes.hpp"
#include "cuda/kernels/backward_tiles.hpp"
#include "cuda/limits.hpp"

namespace attn::cuda {

using device::Gradient;

core::Size row_terms_bytes(const Problem& p) {
  if (!may_add_far(p)) return num_rows(p) * sizeof(device::RowTerms);
  return num_rows(p) * (sizeof(device::RowTerms) + sizeof(device::FarRow)) + kAnyFarRowBytes;
}

core::Size kernel_offset(const Problem& p, bool deterministic) {
  constexpr std::int64_t kAlignment = 128;
  return core::round_up(row_terms_bytes(p) + buffer_sums_bytes(p, deterministic), kAlignment);
}

std::int64_t checked_workspace(const Problem& p, const BackwardKernel& kernel,
                               const BackwardWish& wish) {
  core::Size bytes = row_terms_bytes(p) + buffer_sums_bytes(p, wish.deterministic);
  core::Size blocks = std::max({core::divide_up(num_rows(p), 4), core::Size(p.heads_q),
                                buffer_blocks(p, wish.deterministic)});
  // Tensors without a map get another kernel, and so do those that are not aligned, with tiles of
  // their own.
  const BackwardKernel& unmapped = kernel.maps != nullptr && wish.kernel.empty()
                                       ? choose_backward_kernel(p, {.mapped = false}, wish)
                                       : kernel;
  const BackwardKernel& unaligned = choose_backward_kernel(
      p, {.aligned = false}, {.arch = wish.arch, .deterministic = wish.deterministic});
  const core::Size offset = kernel_offset(p, wish.deterministic);
  for (const BackwardKernel* any : {&kernel, &unmapped}) {
    if (any->workspace == nullptr) continue;
    // Which tensors a call brings is not known. Those that ask for most are lengths, as what is
    // seen then differs between batch entries, or none, as tiles may then take turns unasked.
    for (const bool used : {false, true}) {
      const BackwardConfig config =
          backward_config(*any, p, {.seqused_q = used, .seqused_k = used}, Gradient::all, wish);
      bytes = std::max(bytes, offset + any->workspace(p, config));
      if (any->one_pass) blocks = std::max(blocks, one_pass_blocks(p, config));
    }
  }
  for (const BackwardKernel* any : {&kernel, &unmapped, &unaligned}) {
    for (const BackwardConfig& config : backward_launches(*any, p, {}, {}, wish)) {
      blocks = std::max(blocks, num_tiles(p, config));
    }
  }
  check_sizes(p, Phase::backward, bytes, blocks);
  return bytes.value();
}

}  // namespace attn::cuda
