// In how many parts of the keys a forward pass is cut.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// The device as the choice of splits sees it: its multiprocessors and what each of them reads. A
// driver that does not tell the memory's clock and width leaves the default of the latter.
Multiprocessors multiprocessors(const DeviceInfo& device);

// Parts of the keys so that a device is busy, kMostSplits at most; 1 where tiles suffice, and of
// kernels that do not split.
std::int32_t choose_splits(const Problem& problem, const ForwardConfig& config,
                           const Multiprocessors& device);

// The same where bits must not depend on the batch (PlanOptions::batch_invariant), so that it is
// chosen for a sequence alone.
KeySplits invariant_splits(const Problem& problem, const ForwardConfig& config,
                           const Multiprocessors& device);
// Blocks of keys that a piece has at least.
std::int64_t least_blocks(const Problem& problem, const ForwardConfig& config, KeySplits splits);

}  // namespace attn::cuda
