// How much shared memory the architectures have.
#pragma once

#include <cstdint>

#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// What a block of threads may opt in to. A multiprocessor has 1 KB more, and keeps 1 KB for each
// block.
std::int64_t most_shared_bytes(Arch arch) noexcept;

}  // namespace attn::cuda
