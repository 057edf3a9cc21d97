// The CUDA devices of this machine, and the context in which work on one of them is given.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/driver/api.hpp"

namespace attn::cuda {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int arch = 0;  // compute capability: 90 is 9.0
  int sm_count = 0;
  std::int64_t shared_bytes_per_block = 0;  // that a kernel may opt in to
  std::int64_t shared_bytes_per_sm = 0;
  std::int64_t registers_per_sm = 0;  // of 32 bits
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  int clock_khz = 0;  // 0 where the driver does not tell
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
};

// 0 where no GPU can be used.
int device_count() noexcept;
// Read once. Throws Error(unavailable) without a driver, Error(invalid_argument) for an ordinal
// that is not a device.
const DeviceInfo& device_info(int ordinal);

// Makes a context of the device current in this thread and takes it away again: the caller's own
// where it is of that device already, else the primary context, which the CUDA runtime uses too.
// The primary context is kept from its first use to the end of the process. Within a guard, another
// one of the same device asks the driver nothing.
class ContextGuard {
 public:
  explicit ContextGuard(int device);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  int outer_ = -1;  // device of the guard around this one; -1: none
  bool pushed_ = false;
};

}  // namespace attn::cuda
