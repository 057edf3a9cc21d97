// Checks of a call's arguments, before anything is written.
#pragma once

#include "attn/run.hpp"

namespace attn::core {

// problem has every size set. Each throws Error(invalid_argument) with the argument, its value and
// what is accepted.
void validate_problem(const Problem& problem);
void validate_forward(const Problem& problem, const Inputs& inputs, const Outputs& outputs);
void validate_backward(const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                       const Tensor& d_o, const Gradients& gradients);

}  // namespace attn::core
