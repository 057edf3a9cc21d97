// What no launch takes, on any GPU or on one that is too old, refused by name before anything runs.
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/plan.hpp"
#include "core/tensor/size.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// Rows of a sequence, and blocks of threads or tiles of a launch. Kernels count them in int32 and
// round up to whole tiles, or add the size of the grid to a tile's number, before they compare: so
// 2^13 less than 2^31.
inline constexpr std::int64_t kMostRows = (std::int64_t{1} << 31) - (1 << 13);
inline constexpr std::int64_t kMostBlocks = kMostRows;

// The architecture that kernels of attention are compiled for on this device. Throws
// Error(unsupported) before sm_80.
Arch supported_arch(const DeviceInfo& device);

// Throws Error(unsupported) where the phase of the problem needs longer sequences, more memory or
// larger grids than there can be. workspace: bytes. blocks: of the largest grid, or its tiles.
void check_sizes(const Problem& problem, Phase phase, core::Size workspace, core::Size blocks);

// Bytes of parameters that a kernel may have: 4096, and 32764 where both the compiler and the
// driver, if there is one, are of CUDA 12.1 or newer.
std::int64_t parameter_space();

// Throws Error(unsupported) where the parameters of `kernel` take more than that: views of buffers
// and numbers of mask and score are among them.
void check_parameters(const Problem& problem, std::string_view kernel, std::int64_t bytes);

}  // namespace attn::cuda
