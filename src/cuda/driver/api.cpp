#include "cuda/driver/api.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"
#include "core/first_made.hpp"
#include "core/platform/platform.hpp"
#include "cuda/driver/nvrtc.hpp"

namespace attn::cuda {
namespace {

struct Driver {
  Api api;
  std::string missing;  // empty: usable
};

// Before cuGetErrorName is known to work.
std::string error_name(const Api& api, CUresult result) {
  const char* name = nullptr;
  if (api.cuGetErrorName == nullptr || api.cuGetErrorName(result, &name) != CUDA_SUCCESS ||
      name == nullptr) {
    return fmt::format("CUDA error {}", static_cast<int>(result));
  }
  return name;
}

Driver open_driver() {
  Driver driver;
  Api& api = driver.api;
  const core::SharedLibrary library = core::open_library("libcuda.so.1");
  if (library.handle == nullptr) {
    driver.missing = fmt::format("the NVIDIA driver library cannot be opened ({})", library.error);
    return driver;
  }
  std::string absent;
#define ATTN_FIND(name, symbol, parameters)                                            \
  api.name = reinterpret_cast<decltype(api.name)>(core::find_symbol(library, symbol)); \
  if (api.name == nullptr && absent.empty()) absent = symbol;
  ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_FIND)
#undef ATTN_FIND
  if (api.cuDriverGetVersion != nullptr) api.cuDriverGetVersion(&api.driver_version);
  if (!absent.empty() || api.driver_version < kOldestDriver) {
    driver.missing = fmt::format(
        "the NVIDIA driver {} speaks CUDA {}{}, which is too old; needed is CUDA {} (driver 525) "
        "or newer",
        library.path, version_text(api.driver_version),
        absent.empty() ? "" : " and has no " + absent, version_text(kOldestDriver));
    return driver;
  }
  const CUresult started = api.cuInit(0);
  if (started == CUDA_SUCCESS) api.cuDeviceGetCount(&api.device_count);
  if (started == CUDA_ERROR_NO_DEVICE || (started == CUDA_SUCCESS && api.device_count == 0)) {
    driver.missing = fmt::format("the NVIDIA driver {} finds no CUDA device", library.path);
  } else if (started != CUDA_SUCCESS) {
    driver.missing = fmt::format("the NVIDIA driver {} does not start: cuInit gives {}",
                                 library.path, error_name(api, started));
  }
  return driver;
}

const Driver& driver() {
  static constinit core::FirstMade<const Driver> driver;
  return driver.get(open_driver);
}

}  // namespace

const Api& api() {
  if (!driver().missing.empty()) {
    throw Error(ErrorCode::unavailable, "no GPU can be used: " + driver().missing);
  }
  return driver().api;
}

const Api* try_api() noexcept { return driver().missing.empty() ? &driver().api : nullptr; }

std::optional<std::string> why_no_driver() noexcept {
  if (driver().missing.empty()) return std::nullopt;
  return driver().missing;
}

std::optional<std::string> why_unavailable() noexcept {
  if (std::optional<std::string> reason = why_no_driver()) return reason;
  return why_no_nvrtc();
}

std::string version_text(int driver_version) {
  return fmt::format("{}.{}", driver_version / 1000, driver_version % 1000 / 10);
}

bool is_sticky(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
      return true;
    default:
      return false;
  }
}

void check(CUresult result, std::string_view call) {
  if (result == CUDA_SUCCESS) return;
  const Api& functions = driver().api;
  const char* meaning = nullptr;
  if (functions.cuGetErrorString != nullptr) functions.cuGetErrorString(result, &meaning);
  std::string message = fmt::format("{} gives {}", call, error_name(functions, result));
  if (meaning != nullptr) message += fmt::format(" ({})", meaning);
  if (is_sticky(result)) {
    message +=
        "; the error was left by earlier work on this device, which takes no more work from "
        "this process";
  }
  throw Error(result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::device,
              message);
}

}  // namespace attn::cuda
