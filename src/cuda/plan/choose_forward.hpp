// Which forward kernel a problem gets, and which tile shape.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attn/problem.hpp"
#include "cuda/jit/compile.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// What kernel, tiles and the number of splits are chosen for where bits must not depend on the
// batch: one sequence with a fixed number of keys.
Problem alone(const Problem& problem);

// Whether a kernel takes Q, K and V of the types that the problem has.
bool takes_types(const ForwardKernel& kernel, const Problem& problem);

// The kernel and the shape for a problem; `forced` is a kernel's name or empty. Throws
// Error(unsupported) naming the problem and what the forced kernel, or every kernel, takes.
ForwardConfig choose_forward(const Problem& problem, Arch arch, const ForwardTensors& tensors,
                             KeySplits splits, std::string_view forced);

// The choice for each kernel that may come to run the problem: which one does depends on the
// tensors of a call. Features are those that ask for most.
std::vector<ForwardConfig> possible_forwards(const Problem& problem, Arch arch, KeySplits splits,
                                             std::string_view forced);

}  // namespace attn::cuda
