// The backward pass over lists of keys in float32, for whatever tensor cores do not take.
#pragma once

#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

BackwardChoice choose_backward_simt_key_list(const BackwardRequest& request);

}  // namespace attn::cuda
