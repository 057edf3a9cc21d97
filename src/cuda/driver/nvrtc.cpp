#include "cuda/driver/nvrtc.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "attn/error.hpp"
#include "core/first_made.hpp"
#include "core/platform/platform.hpp"
#include "core/text/echo.hpp"

namespace attn::cuda {
namespace {

struct Compiler {
  Nvrtc nvrtc;
  std::string missing;  // empty: usable
};

// The CUDA that the driver speaks; 0 without a driver. Needs no cuInit, so that compiling ahead of
// time leaves the devices alone.
int driver_version() {
  const core::SharedLibrary library = core::open_library("libcuda.so.1");
  int version = 0;
  if (library.handle != nullptr) {
    const auto get =
        reinterpret_cast<int (*)(int*)>(core::find_symbol(library, "cuDriverGetVersion"));
    if (get != nullptr) get(&version);
  }
  return version;
}

std::vector<std::string> candidates() {
  const char* named = std::getenv("ATTN_NVRTC");
  if (named != nullptr && named[0] != '\0') return {named};
  const int driver = driver_version();
  std::vector<std::string> names;
  const auto add = [&](const std::string& file) {
    names.push_back(file);
    for (const char* folder :
         {"/usr/local/cuda/lib64/", "/usr/local/cuda/targets/x86_64-linux/lib/",
          "/usr/lib/x86_64-linux-gnu/"}) {
      names.push_back(folder + file);
    }
  };
  const bool old_driver = driver != 0 && driver < 13000;
  add(old_driver ? "libnvrtc.so.12" : "libnvrtc.so.13");
  add(old_driver ? "libnvrtc.so.13" : "libnvrtc.so.12");
  add("libnvrtc.so");
  return names;
}

// Empty on success.
std::string bind(const core::SharedLibrary& library, Nvrtc& nvrtc) {
#define ATTN_FIND(name, symbol, parameters)                                                \
  nvrtc.name = reinterpret_cast<decltype(nvrtc.name)>(core::find_symbol(library, symbol)); \
  if (nvrtc.name == nullptr) return fmt::format("{} has no {}", library.path, symbol);
  ATTN_NVRTC_FUNCTIONS(ATTN_FIND)
#undef ATTN_FIND
  nvrtc.nvrtcGetErrorString = reinterpret_cast<decltype(nvrtc.nvrtcGetErrorString)>(
      core::find_symbol(library, "nvrtcGetErrorString"));
  int major = 0, minor = 0;
  if (nvrtc.nvrtcGetErrorString == nullptr || nvrtc.nvrtcVersion(&major, &minor) != NVRTC_SUCCESS) {
    return library.path + " does not tell its version";
  }
  nvrtc.version = major * 1000 + minor * 10;
  nvrtc.path = library.path;
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(library.path, unknown);
  nvrtc.library_bytes = unknown ? 0 : bytes;
  // CUDA 12 is the first with C++20 and sm_90a.
  if (major < 12) return fmt::format("{} is version {}.{}, too old", library.path, major, minor);
  return {};
}

Compiler open_compiler() {
  Compiler compiler;
  std::string first_error;
  for (const std::string& name : candidates()) {
    const core::SharedLibrary library = core::open_library(name);
    std::string error = library.error;
    if (library.handle != nullptr) error = bind(library, compiler.nvrtc);
    if (error.empty()) return compiler;
    if (first_error.empty() || library.handle != nullptr) first_error = error;
  }
  compiler.missing = fmt::format(
      "the run-time compiler NVRTC of CUDA 12 or newer cannot be opened ({}); ATTN_NVRTC may name "
      "its file",
      core::echo_path(first_error));
  return compiler;
}

const Compiler& compiler() {
  static constinit core::FirstMade<const Compiler> compiler;
  return compiler.get(open_compiler);
}

}  // namespace

const Nvrtc& nvrtc() {
  if (!compiler().missing.empty()) throw Error(ErrorCode::unavailable, compiler().missing);
  return compiler().nvrtc;
}

std::optional<std::string> why_no_nvrtc() noexcept {
  if (compiler().missing.empty()) return std::nullopt;
  return compiler().missing;
}

}  // namespace attn::cuda
