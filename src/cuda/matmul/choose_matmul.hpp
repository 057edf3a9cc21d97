// Which rung of the ladder of matrix products a problem gets, and the shape of its tiles.
#pragma once

#include "attn/matmul.hpp"
#include "cuda/jit/compile.hpp"
#include "cuda/matmul/matmul_config.hpp"
#include "cuda/matmul/matmul_request.hpp"

namespace attn::cuda {

// What the tensors add to the problem; a plan assumes the best.
struct MatmulTensors {
  bool aligned = true;    // A and B, and their strides, to 16 bytes
  bool aligned_c = true;  // C likewise
  bool operator==(const MatmulTensors&) const = default;
};

// What was asked for, or where that is empty the fastest that takes the problem; or_slower: or the
// next below that takes it. Throws Error(unsupported) naming what it does not take.
MatmulConfig choose_matmul(const MatmulProblem& problem, Arch arch, const MatmulRequest& request,
                           const MatmulTensors& tensors, int sm_count, bool or_slower = false);

}  // namespace attn::cuda
