// In how many parts of the keys a forward pass is cut.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// Parts of the keys so that a device with sm_count multiprocessors is busy, kMostSplits at most; 1
// where tiles suffice, and of kernels that do not split.
std::int32_t choose_splits(const Problem& problem, const ForwardConfig& config, int sm_count);

}  // namespace attn::cuda
