#include "cuda/limits.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"
#include "core/text/echo.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/driver/nvrtc.hpp"

namespace attn::cuda {
namespace {

// The CUDA C++ Programming Guide: 4 KB, and 32,764 bytes from CUDA 12.1 and compute capability 7.0
// on.
constexpr std::int64_t kSmallSpace = 4096, kLargeSpace = 32764;
constexpr int kLargeSince = 12010;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::unsupported, message);
}

}  // namespace

Arch supported_arch(const DeviceInfo& device) {
  const Arch arch = arch_of_capability(device.arch);
  if (arch.number < 80) {
    refuse(fmt::format("device cuda:{} ({}) is {}; accepted are sm_80 and up", device.ordinal,
                       device.name, to_string(arch)));
  }
  return arch;
}

void check_sizes(const Problem& p, Phase phase, core::Size workspace, core::Size blocks) {
  for (const auto& [name, rows] :
       {std::pair{"seqlen_q", p.seqlen_q}, std::pair{"seqlen_k", p.seqlen_k},
        std::pair{"key_list", p.key_list}}) {
    if (rows <= kMostRows) continue;
    refuse(fmt::format("{} is {}; accepted on the cuda backend are up to {} (problem {})", name,
                       rows, kMostRows, core::echo(p)));
  }
  if (!workspace.fits()) {
    refuse(
        fmt::format("the workspace of the {} pass is {} bytes; accepted is what 63 bits hold "
                    "(problem {})",
                    name(phase), core::to_string(workspace), core::echo(p)));
  }
  if (blocks > kMostBlocks) {
    refuse(
        fmt::format("the {} pass has {} blocks of threads or tiles in a launch; accepted on the "
                    "cuda backend are up to {} (problem {})",
                    name(phase), core::to_string(blocks), kMostBlocks, core::echo(p)));
  }
}

std::int64_t parameter_space() {
  const Api* driver = try_api();
  const bool large = nvrtc().version >= kLargeSince &&
                     (driver == nullptr || driver->driver_version >= kLargeSince);
  return large ? kLargeSpace : kSmallSpace;
}

void check_parameters(const Problem& p, std::string_view kernel, std::int64_t bytes) {
  if (bytes <= kSmallSpace || bytes <= parameter_space()) return;
  refuse(
      fmt::format("the parameters of {} are {} bytes, 56 for each buffer that mask and score "
                  "read and more for what their derivatives need; accepted are up to {} here, "
                  "and {} where NVRTC and driver are of CUDA 12.1 or newer (problem {})",
                  kernel, bytes, parameter_space(), kLargeSpace, core::echo(p)));
}

}  // namespace attn::cuda
