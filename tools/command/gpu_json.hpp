// A GPU in a --json file.
#pragma once

#include "command/json_report.hpp"
#include "cuda/driver/device.hpp"

namespace attn::command {

inline Json gpu_json(const cuda::DeviceInfo& gpu) {
  return {{"name", gpu.name},
          {"arch", gpu.arch},
          {"sm_count", gpu.sm_count},
          {"l2_bytes", gpu.l2_bytes},
          {"memory_bytes", gpu.memory_bytes},
          {"driver", cuda::version_text(cuda::api().driver_version)}};
}

}  // namespace attn::command
