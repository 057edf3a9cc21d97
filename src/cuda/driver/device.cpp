#include "cuda/driver/device.hpp"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "attn/error.hpp"
#include "core/first_made.hpp"

namespace attn::cuda {
namespace {

struct Slot {
  core::FirstMade<const DeviceInfo> info;
  core::FirstMade<const CUcontext> primary;
};

// One slot a device.
Slot& slot(int ordinal) {
  static constinit core::FirstMade<std::vector<Slot>> made;
  std::vector<Slot>& slots =
      made.get([] { return std::vector<Slot>(static_cast<std::size_t>(api().device_count)); });
  if (ordinal < 0 || ordinal >= api().device_count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("device is cuda:{}; accepted are cuda:0 to cuda:{}", ordinal,
                            api().device_count - 1));
  }
  return slots[static_cast<std::size_t>(ordinal)];
}

// 0 where this driver does not know the attribute.
int attribute(CUdevice_attribute id, CUdevice device) {
  int value = 0;
  return api().cuDeviceGetAttribute(&value, id, device) == CUDA_SUCCESS ? value : 0;
}

DeviceInfo describe(int ordinal) {
  DeviceInfo info;
  info.ordinal = ordinal;
  CUdevice device = 0;
  check(api().cuDeviceGet(&device, ordinal), fmt::format("cuDeviceGet of {}", ordinal));
  std::array<char, 256> name{};
  check(api().cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device),
        "cuDeviceGetName");
  info.name = name.data();
  std::size_t bytes = 0;
  check(api().cuDeviceTotalMem(&bytes, device), "cuDeviceTotalMem");
  info.memory_bytes = static_cast<std::int64_t>(bytes);
  info.arch = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) +
              attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  info.sm_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  info.shared_bytes_per_block =
      attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  info.shared_bytes_per_sm =
      attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device);
  info.registers_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, device);
  info.l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
  info.clock_khz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
  info.memory_clock_khz = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device);
  info.memory_bus_bits = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
  return info;
}

CUcontext primary_context(int ordinal) {
  // Threads that ask at the same time may retain it more than once, which changes nothing: it is
  // never released.
  return slot(ordinal).primary.get([ordinal] {
    CUcontext primary = nullptr;
    check(api().cuDevicePrimaryCtxRetain(&primary, ordinal),
          fmt::format("cuDevicePrimaryCtxRetain of cuda:{}", ordinal));
    return primary;
  });
}

// The device of the innermost guard of this thread; -1: there is none.
thread_local int guarded_device = -1;

}  // namespace

int device_count() noexcept { return try_api() != nullptr ? try_api()->device_count : 0; }

const DeviceInfo& device_info(int ordinal) {
  return slot(ordinal).info.get([ordinal] { return describe(ordinal); });
}

ContextGuard::ContextGuard(int device) : outer_(guarded_device) {
  if (guarded_device == device) return;
  CUcontext current = nullptr;
  check(api().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current != nullptr) {
    CUdevice of_current = -1;
    check(api().cuCtxGetDevice(&of_current), "cuCtxGetDevice");
    if (of_current == device) {
      guarded_device = device;
      return;
    }
  }
  const CUresult result = api().cuCtxPushCurrent(primary_context(device));
  if (result != CUDA_SUCCESS) check(result, fmt::format("cuCtxPushCurrent of cuda:{}", device));
  pushed_ = true;
  guarded_device = device;
}

ContextGuard::~ContextGuard() {
  guarded_device = outer_;
  CUcontext popped = nullptr;
  if (pushed_) api().cuCtxPopCurrent(&popped);
}

}  // namespace attn::cuda
