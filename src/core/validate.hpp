// Checks of a call's arguments, before anything is written.
#pragma once

#include <vector>

#include "attn/run.hpp"
#include "core/argument_check.hpp"

namespace attn::core {

// Where the tensors of a call are: as q.
Device device_of(const Inputs& inputs);

// problem has every size set. Each throws Error(invalid_argument) with the argument, its value and
// what is accepted. `device`: where all tensors must be. Those of a call return the tensors that
// were given.
void validate_problem(const Problem& problem);
std::vector<NamedTensor> validate_forward(const Problem& problem, const Inputs& inputs,
                                          const Outputs& outputs, Device device = {});
std::vector<NamedTensor> validate_backward(const Problem& problem, const Inputs& inputs,
                                           const Outputs& outputs, const Tensor& d_o,
                                           const Gradients& gradients, Device device = {});
// The workspace of a call on a GPU: Context::workspace, of at least `bytes`, apart from `tensors`.
void validate_workspace(const Problem& problem, const Tensor& workspace, std::int64_t bytes,
                        const std::vector<NamedTensor>& tensors, Device device);

}  // namespace attn::core
