// A product that is described, run with the plan of an earlier call like it.
#pragma once

#include "attn/matmul.hpp"

namespace attn {

// As matmul() of tensors alone (attn/matmul.hpp), of what describe() gives and the caller changed.
void matmul_planned(const MatmulProblem& problem, const MatmulInputs& inputs, const Tensor& c,
                    const MatmulOptions& options, const Context& context);

}  // namespace attn
