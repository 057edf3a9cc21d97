// Windows, as MinGW-w64 compiles for it.
#ifndef NOMINMAX  // libstdc++ defines it, where it comes first
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <fmt/format.h>
#include <windows.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "attn/error.hpp"
#include "core/fork_safe.hpp"
#include "core/platform/platform.hpp"
#include "core/text/echo.hpp"

namespace attn::core {

ForkHandler::ForkHandler() = default;
ForkHandler::~ForkHandler() = default;

int affinity_cpus() {
  DWORD_PTR process = 0, machine = 0;
  int cpus = 0;
  // Without a mask where the process spans groups of 64 CPUs.
  if (GetProcessAffinityMask(GetCurrentProcess(), &process, &machine) != 0) {
    cpus = __builtin_popcountll(process);
  }
  return std::max(1, cpus > 0 ? cpus : static_cast<int>(std::thread::hardware_concurrency()));
}

std::string machine_name() {
  SYSTEM_INFO info{};
  GetNativeSystemInfo(&info);
  if (info.wProcessorArchitecture == PROCESSOR_ARCHITECTURE_AMD64) return "x86_64";
  return info.wProcessorArchitecture == PROCESSOR_ARCHITECTURE_ARM64 ? "aarch64" : "";
}

std::int64_t memory_bytes() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof(status);
  return GlobalMemoryStatusEx(&status) != 0 ? static_cast<std::int64_t>(status.ullTotalPhys) : 0;
}

void use_huge_pages(std::byte*, std::size_t) {}

bool permit_amx_tiles() { return false; }

bool has_arm_bf16() { return false; }

SharedLibrary open_library(const std::string& name) {
  SharedLibrary library;
  HMODULE const handle = LoadLibraryA(name.c_str());
  if (handle == nullptr) {
    library.error = std::system_category().message(static_cast<int>(GetLastError()));
    return library;
  }
  library.handle = handle;
  char path[MAX_PATH] = {};
  const DWORD length = GetModuleFileNameA(handle, path, MAX_PATH);
  library.path = length > 0 && length < MAX_PATH ? path : name;
  return library;
}

void* find_symbol(const SharedLibrary& library, const char* symbol) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library.handle), symbol));
}

PrivateFolder::PrivateFolder(std::string folder) : folder_(std::move(folder)) {
  throw Error(ErrorCode::io, fmt::format("cache folder {} is not used: on Windows kernels are not "
                                         "kept on disk",
                                         echo_path(folder_)));
}
PrivateFolder::~PrivateFolder() = default;
std::optional<std::string> PrivateFolder::load(const std::string&) const { return std::nullopt; }
void PrivateFolder::store(const std::string&, std::string_view) const {}

}  // namespace attn::core
