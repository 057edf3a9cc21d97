// libnvrtc, the run-time compiler, opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "cuda/driver/functions.hpp"

namespace attn::cuda {

using nvrtcProgram = struct NvrtcProgram*;
enum nvrtcResult : int {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_INVALID_OPTION = 5,
  NVRTC_ERROR_COMPILATION = 6,
};

struct Nvrtc {
// NOLINTNEXTLINE(bugprone-macro-parentheses): these are a name and a list of types
#define ATTN_DECLARE(name, symbol, parameters) nvrtcResult(*name) parameters = nullptr;
  ATTN_NVRTC_FUNCTIONS(ATTN_DECLARE)
#undef ATTN_DECLARE
  const char* (*nvrtcGetErrorString)(nvrtcResult) = nullptr;
  int version = 0;                   // 13000 is 13.0
  std::string path;                  // of the library
  std::uintmax_t library_bytes = 0;  // its size; 0 when unknown
};

// Opens the library at the first call: the file that ATTN_NVRTC names, or else libnvrtc of CUDA 13
// or 12 where the loader or a usual place has it. A library that is newer than the driver's major
// version is taken last, because that driver may refuse what it makes. Throws Error(unavailable).
const Nvrtc& nvrtc();
std::optional<std::string> why_no_nvrtc() noexcept;

}  // namespace attn::cuda
