// Functions that fake_driver.cpp does not define: they are there, and refuse.
#include <cstdint>

#include "cuda/driver/functions.hpp"
#include "cuda/driver/types.hpp"

namespace attn::cuda {

constexpr auto kNotSupported = static_cast<CUresult>(801);

#define ATTN_REFUSE(name, symbol, parameters)                                         \
  extern "C" CUresult refuse_##name parameters __asm__(symbol) __attribute__((weak)); \
  extern "C" CUresult refuse_##name parameters { return kNotSupported; }
ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_REFUSE)

}  // namespace attn::cuda
