#include "cuda/backward/workspace.hpp"

#include <algorithm>

#include "cuda/backward/buffers.hpp"
#include "cuda/backward/one_pass.hpp"
#include "cuda/heuristics/backward_tiles.hpp"
#include "cuda/heuristics/one_pass_sizes.hpp"
#include "cuda/limits.hpp"

namespace attn::cuda {

using device::Gradient;

core::Size num_rows(const Problem& p) { return core::Size(p.batch) * p.heads_q * p.seqlen_q; }

core::Size row_terms_bytes(const Problem& p) { return num_rows(p) * sizeof(device::RowTerms); }

core::Size num_scores(const Problem& p) { return num_rows(p) * p.seqlen_k; }

core::Size one_pass_offset(const Problem& p, bool deterministic) {
  constexpr std::int64_t kAlignment = 128;
  return core::round_up(row_terms_bytes(p) + buffer_sums_bytes(p, deterministic), kAlignment);
}

std::int64_t checked_workspace(const Problem& p, BackwardKernel kernel, const BackwardWish& wish) {
  core::Size bytes = row_terms_bytes(p) + buffer_sums_bytes(p, wish.deterministic);
  core::Size blocks = std::max({core::divide_up(num_rows(p), 4), core::Size(p.heads_q),
                                buffer_blocks(p, wish.deterministic)});
  // Tensors without a map get backward_sm80, those that are not aligned backward_simt, with tiles
  // of their own.
  const BackwardKernel unmapped = kernel == BackwardKernel::sm90 && wish.kernel.empty()
                                      ? choose_backward_kernel(p, {.mapped = false}, wish)
                                      : kernel;
  for (const BackwardKernel any : {kernel, unmapped}) {
    if (!is_one_pass(any)) continue;
    // Which tensors a call brings is not known. Those that ask for most are lengths, as what is
    // seen then differs between batch entries, or none, as tiles may then take turns unasked.
    for (const bool used : {false, true}) {
      const BackwardConfig config =
          backward_config(any, p, {.seqused_q = used, .seqused_k = used}, Gradient::all, wish);
      bytes =
          std::max(bytes, one_pass_offset(p, wish.deterministic) + one_pass_workspace(p, config));
      blocks = std::max(blocks, one_pass_blocks(p, config));
    }
  }
  if (kernel == BackwardKernel::flash_attention) {
    bytes = std::max(
        bytes, one_pass_offset(p, wish.deterministic) + num_rows(p) * p.head_dim * sizeof(float));
  }
  if (kernel == BackwardKernel::standard) {
    bytes = std::max(bytes,
                     one_pass_offset(p, wish.deterministic) + num_scores(p) * (2 * sizeof(float)));
  }
  for (const BackwardKernel any : {kernel, unmapped, BackwardKernel::simt}) {
    for (const BackwardConfig& config : backward_launches(any, p, {}, {}, wish)) {
      blocks = std::max(blocks, num_tiles(p, config));
    }
  }
  check_sizes(p, Phase::backward, bytes, blocks);
  return bytes.value();
}

}  // namespace attn::cuda
