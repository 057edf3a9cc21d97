#include "cuda/plan/choose_buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/expr/build.hpp"
#include "core/expr/program.hpp"
#include "cuda/codegen/buffer_gradients.hpp"
#include "cuda/kernel_parts.hpp"

namespace attn::cuda {
namespace {

// Loads of elements by the score, other than of run-time scalars: a buffer may be read in two
// places.
std::ptrdiff_t num_loads(const Problem& p) {
  if (p.score.empty()) return 0;
  const expr::Program program = expr::compile(p.score);
  return std::ranges::count_if(program.instructions, [&](const expr::Instruction& in) {
    return in.op == expr::Op::load &&
           !expr::is_scalar(*program.buffers[static_cast<std::size_t>(in.buffer)]);
  });
}

BufferFeatures buffer_features(const Problem& p, const std::vector<std::string>& names,
                               bool deterministic) {
  const OwnElements own = own_elements(p.score);
  const auto is_own = [&](const std::string& name) { return own.has(name); };
  BufferFeatures f;
  f.own_elements = std::ranges::any_of(names, is_own);
  f.reads_batch = own.reads_batch;
  f.reads_head = own.reads_head;
  f.by_position = own.by_position;
  f.single_own = names.size() == 1 && f.own_elements;
  f.same_vectors = num_loads(p) == 1;
  f.exact_sums = deterministic && !std::ranges::all_of(names, is_own);
  return f;
}

// The choices of the kernels that take the request, in order of preference. `named`: of the kernel
// that the caller names, or empty.
std::vector<BackwardConfig> configs_of(const BackwardRequest& request, std::string_view named) {
  std::vector<BackwardConfig> configs;
  for (const BackwardKernel& kernel : backward_kernels()) {
    if (!kernel.gives_buffers) continue;
    if (!kernel.beside.empty() && !named.empty() && named != kernel.beside) continue;
    BackwardChoice choice = kernel.choose(request);
    if (!choice.obstacle.empty()) continue;
    configs.push_back(config_of(kernel, request, std::move(choice)));
  }
  return configs;
}

}  // namespace

BackwardConfig buffers_config(const Problem& p, const BackwardTensors& tensors,
                              const std::vector<std::string>& names, const BackwardWish& wish) {
  const BackwardRequest request{.problem = p,
                                .arch = wish.arch,
                                .tensors = tensors,
                                .gradient = device::Gradient::buffers,
                                .features = backward_features(p, tensors),
                                .buffers = buffer_features(p, names, wish.deterministic),
                                .deterministic = wish.deterministic};
  // The last kernel takes all.
  return configs_of(request, split_kernel_name(wish.kernel).kernel).front();
}

std::vector<BackwardConfig> possible_buffers_configs(const Problem& p,
                                                     const std::vector<std::string>& names,
                                                     bool deterministic) {
  const BackwardTensors tensors;
  BackwardRequest request{.problem = p,
                          .arch = Arch{90, true},  // of which every kernel is
                          .tensors = tensors,
                          .gradient = device::Gradient::buffers,
                          .features = backward_features(p, tensors),
                          .buffers = buffer_features(p, names, deterministic),
                          .deterministic = deterministic};
  request.buffers.single_own = true;
  return configs_of(request, {});
}

}  // namespace attn::cuda
