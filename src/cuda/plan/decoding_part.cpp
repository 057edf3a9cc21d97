#include "cuda/plan/decoding_part.hpp"

#include <algorithm>
#include <array>

#include "core/cache_type.hpp"
#include "cuda/plan/choose_forward.hpp"
#include "cuda/plan/splits.hpp"

namespace attn::cuda {

std::optional<DecodingPart> decoding_part(const Problem& problem, Arch arch,
                                          const Multiprocessors& device, KeySplits of_all) {
  const bool batch_invariant = of_all.batch_invariant;
  if (problem.layout_q != Layout::packed || problem.key_list > 0) return {};
  if (core::has_own_type_q(problem)) return {};
  if (problem.seqlen_k <= problem.seqlen_q && !batch_invariant) return {};
  // What the mask says of blocks of keys is classified ahead, for one kernel.
  const Problem& chosen_for = batch_invariant ? alone(problem) : problem;
  if (forward_features(chosen_for, {}).mask_scans_buffers) return {};
  const auto kernels = forward_kernels();
  const auto found = std::ranges::find_if(kernels, &ForwardKernel::takes_pieces);
  if (found == kernels.end() || problem.heads_k == 0) return {};
  const std::int64_t group = problem.heads_q / problem.heads_k;
  constexpr std::array<std::int64_t, 2> kRows{32, 16};  // that the kernel may take, most first
  for (const std::int64_t rows : kRows) {
    DecodingPart part{problem, {}, &*found};
    part.problem.seqlen_q = rows / group;
    if (part.problem.seqlen_q == 0 || part.problem.seqlen_q >= problem.seqlen_q) continue;
    const ForwardTensors tensors;
    const ForwardFeatures features = forward_features(part.problem, tensors);
    if (!found->choose({part.problem, arch, tensors, features, false, {}}).obstacle.empty())
      continue;
    const ForwardConfig config =
        choose_forward(part.problem, arch, tensors, {1, batch_invariant}, found->name);
    if (config.classified) continue;  // by its own, fewer queries
    part.splits = batch_invariant ? invariant_splits(part.problem, config, device)
                                  : KeySplits(choose_splits(part.problem, config, device));
    part.splits.keeps_parts = of_all.keeps_parts;
    return part;
  }
  return {};
}

ForwardConfig few_rows_of(const DecodingPart& part, Arch arch, const ForwardTensors& tensors) {
  ForwardConfig config =
      choose_forward(part.problem, arch, tensors, part.splits, part.kernel->name);
  config.queries.most = static_cast<int>(part.problem.seqlen_q);
  return config;
}

ForwardConfig rest_of(const DecodingPart& part, const Problem& problem, Arch arch,
                      const ForwardTensors& tensors, KeySplits splits, std::string_view kernel) {
  ForwardConfig config = choose_forward(problem, arch, tensors, splits, kernel);
  config.queries.least = static_cast<int>(part.problem.seqlen_q) + 1;
  return config;
}

}  // namespace attn::cuda
