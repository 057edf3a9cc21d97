// libcuda.so.1, opened at run time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cuda/driver/functions.hpp"
#include "cuda/driver/types.hpp"

namespace attn::cuda {

// The oldest driver with all functions of the table (CUDA 12.0, driver 525).
inline constexpr int kOldestDriver = 12000;

// The functions, under their names without version: api().cuMemAlloc(...). Constant once made;
// every call of the driver is thread-safe. They return CUresult: see check().
struct Api {
// NOLINTNEXTLINE(bugprone-macro-parentheses): these are a name and a list of types
#define ATTN_DECLARE(name, symbol, parameters) CUresult(*name) parameters = nullptr;
  ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_DECLARE)
#undef ATTN_DECLARE
  int driver_version = 0;  // of the CUDA that the driver speaks: 12040 is 12.4
  int device_count = 0;
};

// Opens the driver at the first call. Throws Error(unavailable) saying what is missing.
const Api& api();

// Does what api() does but throws nothing: null where there is no usable driver or no device.
const Api* try_api() noexcept;

// What is missing for running on a GPU: the driver library, a new enough driver, a device, or
// NVRTC. One sentence; empty when nothing is missing. Opens both libraries.
std::optional<std::string> why_unavailable() noexcept;

// What is missing of driver and devices alone.
std::optional<std::string> why_no_driver() noexcept;

// "12.4" of 12040.
std::string version_text(int driver_version);

// Throws Error(out_of_memory | device) unless result is CUDA_SUCCESS; `call` says what was tried:
// "cuMemAlloc of 1024 bytes". Names the driver's error, and says so when an earlier kernel left it.
void check(CUresult result, std::string_view call);
// Whether the driver answers every later call on this device with this error.
bool is_sticky(CUresult result) noexcept;

}  // namespace attn::cuda
