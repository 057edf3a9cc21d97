#include "fake_driver.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "host.hpp"

namespace attn::cuda {
namespace {

FakeDriver& state() {
  static FakeDriver driver{.version = number("FAKE_DRIVER_VERSION", 12040),
                           .devices = number("FAKE_DRIVER_DEVICES", 2),
                           .init = static_cast<CUresult>(number("FAKE_DRIVER_INIT", 0)),
                           .nvrtc_major = number("FAKE_NVRTC_MAJOR", 13)};
  return driver;
}

// Of FakeDriver::memory: threads of a test may allocate, free and ask at once.
std::mutex& memory_mutex() {
  static std::mutex mutex;
  return mutex;
}

CUresult result_of(std::string_view function) {
  const auto failure = state().failures.find(function);
  return failure == state().failures.end() ? CUDA_SUCCESS : failure->second;
}

int current_device() {
  return contexts().empty()
             ? -1
             : static_cast<int>(reinterpret_cast<std::size_t>(contexts().back()) & 0xff);
}

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes, bool managed) {
  if (bytes > std::size_t{1} << 40) return CUDA_ERROR_OUT_OF_MEMORY;
  constexpr std::size_t kAlignment = 256;  // as drivers give it
  const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *pointer = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(kAlignment, whole));
  const std::lock_guard lock(memory_mutex());
  state().memory[*pointer] = {.bytes = bytes, .device = current_device(), .managed = managed};
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

FakeDriver* attn_fake_driver() { return &state(); }
std::vector<CUcontext>* attn_fake_contexts() { return &contexts(); }

CUresult cuInit(unsigned) { return state().init; }
CUresult cuDriverGetVersion(int* version) {
  *version = state().version;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "a sentence of the driver";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = state().devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  std::strncpy(name, device == 0 ? "Fake 0" : "Fake 1", static_cast<std::size_t>(size));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = std::size_t{80} << 30;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  count_call(DriverFunction::cuDeviceGetAttribute);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = device == 0 ? 9 : 8;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = device == 0 ? 0 : 6;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = 232448;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  count_call(DriverFunction::cuDevicePrimaryCtxRetain);
  *context = fake_context(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  count_call(DriverFunction::cuCtxGetDevice);
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void*, int*, void**, unsigned, int*, void**,
                           unsigned) {
  count_call(DriverFunction::cuLibraryLoadData);
  *library = reinterpret_cast<CUlibrary>(&state());
  ++state().libraries;
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary) {
  --state().libraries;
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char*) {
  count_call(DriverFunction::cuLibraryGetKernel);
  *kernel = reinterpret_cast<CUkernel>(&state());
  return result_of("cuLibraryGetKernel");
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel, CUdevice) {
  count_call(DriverFunction::cuKernelGetAttribute);
  *value = attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS        ? 24
                                                            : 0;
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel, CUdevice) {
  count_call(DriverFunction::cuKernelSetAttribute);
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    state().dynamic_shared_bytes = value;
  }
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void** parameters, void**) {
  count_call(DriverFunction::cuLaunchKernelEx);
  static std::mutex mutex;  // of what was asked for last
  const std::lock_guard lock(mutex);
  ++state().launches;
  state().launch = *config;
  state().launch_context = contexts().empty() ? nullptr : contexts().back();
  if (state().parameter_bytes > 0) {
    const auto* first = static_cast<const std::byte*>(parameters[0]);
    state().parameter.assign(first, first + state().parameter_bytes);
  }
  state().attributes.assign(config->attrs, config->attrs + config->numAttrs);
  return result_of("cuLaunchKernelEx");
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
  count_call(DriverFunction::cuMemAlloc);
  return allocate(pointer, bytes, false);
}
CUresult cuMemAllocManaged(CUdeviceptr* pointer, std::size_t bytes, unsigned) {
  return allocate(pointer, bytes, true);
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
  count_call(DriverFunction::cuMemFree);
  const std::lock_guard lock(memory_mutex());
  state().memory.erase(pointer);
  std::free(reinterpret_cast<void*>(pointer));
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, std::uint32_t, void*,
                                const std::uint64_t*, const std::uint64_t*, const std::uint32_t*,
                                const std::uint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  count_call(DriverFunction::cuTensorMapEncodeTiled);
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  count_call(DriverFunction::cuStreamIsCapturing);
  const auto found = state().captures.find(stream);
  *status = found == state().captures.end() ? CU_STREAM_CAPTURE_STATUS_NONE : found->second;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  count_call(DriverFunction::cuStreamGetId);
  *id = reinterpret_cast<unsigned long long>(stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) {
  count_call(DriverFunction::cuStreamSynchronize);
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  count_call(DriverFunction::cuCtxSynchronize);
  return CUDA_SUCCESS;
}
// As the driver: memory that it does not know has attributes of 0.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr pointer) {
  count_call(DriverFunction::cuPointerGetAttributes);
  const std::lock_guard lock(memory_mutex());
  const FakeDriver::Memory* found = nullptr;
  CUdeviceptr first = 0;
  for (const auto& [start, memory] : state().memory) {
    if (start > pointer || pointer >= start + memory.bytes) continue;
    found = &memory;
    first = start;
  }
  const auto set = [](void* to, auto value) { std::memcpy(to, &value, sizeof(value)); };
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        set(values[i], found != nullptr ? static_cast<int>(found->type) : 0);
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        set(values[i], found != nullptr && found->managed ? 1 : 0);
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        set(values[i], found != nullptr ? found->device : 0);
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        set(values[i], first);
        break;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        set(values[i], found != nullptr ? found->bytes : std::size_t{0});
        break;
    }
  }
  return result_of("cuPointerGetAttributes");
}

}  // extern "C"

}  // namespace attn::cuda
