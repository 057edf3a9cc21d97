// The backward pass over lists of keys by mma.sync, on any architecture from 8.0 on.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_sm80_key_list(const BackwardRequest& request);

}  // namespace attn::cuda
