// What drivers share whose device memory is the host's: the one that pretends and the emulated one.
#pragma once

#include <vector>

#include "cuda/driver/types.hpp"

namespace attn::cuda {

// Of the calling thread, the current one last.
std::vector<CUcontext>& contexts();

// Of the environment.
int number(const char* variable, int otherwise);

}  // namespace attn::cuda
