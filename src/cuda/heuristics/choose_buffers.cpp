#include "cuda/heuristics/choose_buffers.hpp"

#include <algorithm>
#include <cstddef>

#include "core/expr/build.hpp"
#include "core/expr/program.hpp"
#include "cuda/codegen/buffer_gradients.hpp"
#include "cuda/heuristics/backward_sm90_buffers.hpp"
#include "cuda/kernel_parts.hpp"

namespace attn::cuda {
namespace {

bool takes_tensor_cores(const Problem& p, const BackwardTensors& tensors) {
  constexpr std::int64_t kMostColumns = 256;
  const auto fits = [](std::int64_t d) { return d % 8 == 0 && d <= kMostColumns; };
  return (p.dtype == DType::bf16 || p.dtype == DType::f16) && tensors.aligned && fits(p.head_dim) &&
         fits(p.head_dim_v);
}

// The Hopper kernel has the sums of one buffer, each of a query and a key, in registers.
bool takes_hopper(const Problem& p, const BackwardTensors& tensors,
                  const std::vector<std::string>& names, const BackwardWish& wish) {
  const bool named =
      wish.kernel.empty() || split_kernel_name(wish.kernel).kernel == name(BackwardKernel::sm90);
  return named && wish.arch.number == 90 && tensors.mapped && names.size() == 1 &&
         own_elements(p.score).has(names.front()) && backward_sm90_buffers_shape(p) != nullptr;
}

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

BackwardConfig config_of(BackwardKernel kernel, const Problem& p, const BackwardTensors& tensors,
                         const std::vector<std::string>& names, bool deterministic) {
  BackwardConfig config = backward_config(kernel, p, tensors, device::Gradient::buffers);
  const OwnElements own = own_elements(p.score);
  const auto is_own = [&](const std::string& name) { return own.has(name); };
  config.own_elements = std::ranges::any_of(names, is_own);
  config.exact_sums = deterministic && !std::ranges::all_of(names, is_own);
  config.reads_batch = own.reads_batch;
  config.reads_head = own.reads_head;
  config.by_position = own.by_position;
  config.same_vectors = num_loads(p) == 1;
  return config;
}

}  // namespace

BackwardConfig buffers_config(const Problem& p, const BackwardTensors& tensors,
                              const std::vector<std::string>& names, const BackwardWish& wish) {
  BackwardKernel kernel = BackwardKernel::simt;
  if (takes_tensor_cores(p, tensors)) {
    kernel = takes_hopper(p, tensors, names, wish) ? BackwardKernel::sm90_buffers
                                                   : BackwardKernel::sm80_buffers;
  }
  return config_of(kernel, p, tensors, names, wish.deterministic);
}

std::vector<BackwardConfig> possible_buffers_configs(const Problem& p,
                                                     const std::vector<std::string>& names,
                                                     bool deterministic) {
  std::vector<BackwardConfig> configs;
  const auto add = [&](BackwardKernel kernel) {
    configs.push_back(config_of(kernel, p, {}, names, deterministic));
  };
  add(BackwardKernel::simt);
  if (!takes_tensor_cores(p, {})) return configs;
  add(BackwardKernel::sm80_buffers);
  if (backward_sm90_buffers_shape(p) != nullptr) add(BackwardKernel::sm90_buffers);
  return configs;
}

}  // namespace attn::cuda
