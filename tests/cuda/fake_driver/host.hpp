// What drivers share whose device memory is the host's: the one that pretends and the emulated one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "cuda/driver/functions.hpp"
#include "cuda/driver/types.hpp"

namespace attn::cuda {

// A function of the driver, by its place in functions.hpp.
#define ATTN_ENUMERATOR(name, symbol, parameters) name,
enum class DriverFunction : std::size_t { ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_ENUMERATOR) count };
#undef ATTN_ENUMERATOR
// Calls of each so far, of all threads. Those that a run may make are counted.
using DriverCalls = std::array<std::atomic<long>, static_cast<std::size_t>(DriverFunction::count)>;
DriverCalls& driver_calls();
inline void count_call(DriverFunction function) {
  driver_calls()[static_cast<std::size_t>(function)].fetch_add(1, std::memory_order_relaxed);
}

// Of the calling thread, the current one last.
std::vector<CUcontext>& contexts();

// Of the environment.
int number(const char* variable, int otherwise);

}  // namespace attn::cuda
