// The gradients of the buffers that a score reads: their kernel, their sums and their launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attn/run.hpp"
#include "cuda/codegen/buffer_gradients.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/jit/kernel.hpp"
#include "cuda/plan/choose_backward.hpp"

namespace attn::cuda {

// The buffers of the score that may have a gradient: those of floats that are no scalars.
std::vector<std::string> gradient_names(const Problem& problem);

// What any call of the problem may need for sums: sum_bytes for each element that is added to in
// memory, and 4 for each element and split of the others, where there are splits.
core::Size buffer_sums_bytes(const Problem& problem, bool deterministic);
// The most blocks of threads of a launch, or of batch entries and heads that one counts.
core::Size buffer_blocks(const Problem& problem, bool deterministic);

// Throws Error(unsupported) where the gradient of a buffer is larger than the buffer's declaration,
// which the workspace of a plan has room for.
void check_buffer_gradients(const Problem& problem, const Gradients& gradients);

// The launches of a call; made once for calls of one kind.
struct BufferLaunches {
  BufferLaunches(const Problem& problem, const BackwardTensors& tensors,
                 const std::vector<std::string>& names, const BackwardWish& wish, int sm_count);

  // Sums lie in the workspace of context, behind the terms of the rows. maps: null where the kernel
  // is given none.
  void launch(const device::BackwardParams& parameters, BackwardMaps* maps, const Inputs& inputs,
              const Gradients& gradients, const Context& context) const;

  BackwardConfig config;
  std::shared_ptr<const Kernel> clear{}, store{}, add{};
  LaunchConfig add_launch{};
  ExpressionPack expressions;
  BufferGradientsPack derivatives;
  std::vector<bool> own, covered;  // whether a buffer is of OwnElements, and written as a whole
  int splits;
  std::int64_t tiles;        // as num_tiles
  std::int64_t sums_offset;  // in the workspace
};

}  // namespace attn::cuda
