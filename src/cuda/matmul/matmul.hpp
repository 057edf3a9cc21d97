// Matrix products on a GPU.
#pragma once

#include <vector>

#include "attn/matmul.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// The problem is valid. Throws Error(unsupported | unavailable).
MatmulPlan plan_matmul(const MatmulProblem& problem, const MatmulOptions& options);
// Arguments are validated. Where the tensors are not aligned as the plan's rung needs, the fastest
// one that takes them.
void matmul(const MatmulPlan& plan, const MatmulInputs& inputs, const Tensor& c,
            const Context& context);

}  // namespace attn::cuda
