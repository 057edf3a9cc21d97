// In which order the tiles of a forward pass come.
#pragma once

#include "attn/problem.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// Pairs of batch and head whose tiles come together, the longest first: their K and V are to stay
// in L2, of which every multiprocessor works on some rows at a time. Without a mask all tiles of a
// pair are as long, and pairs come one by one.
int heads_at_once(const Problem& problem, const ForwardConfig& config);

}  // namespace attn::cuda
