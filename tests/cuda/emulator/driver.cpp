// libcuda.so.1 of a GPU that machine.cpp emulates: sm_90, memory of the host, work that is done
// when it is asked for.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver/functions.hpp"
#include "cuda/driver/types.hpp"
#include "fake_driver/host.hpp"
#include "machine.hpp"

namespace attn::cuda {
namespace {

struct Library {
  void* handle = nullptr;
  void (*call)(void**) = nullptr;
  char* shared = nullptr;
  std::string kernel{};
};

std::mutex mutex;
std::map<CUdeviceptr, std::size_t> memory;
bool failed = false;  // as after an illegal address: nothing runs any more
constexpr std::size_t kSharedBytes = 232448;
// Between cuProfilerStart and cuProfilerStop names of kernels go into the file that
// ATTN_EMULATED_LAUNCHES names, a line a launch.
bool profiling = false;

void note_launch(const Library& library) {
  const char* path = std::getenv("ATTN_EMULATED_LAUNCHES");
  if (!profiling || path == nullptr) return;
  std::ofstream(path, std::ios::app) << library.kernel << '\n';
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "of an emulated GPU";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = number("ATTN_EMULATED_DEVICES", 1);  // all alike
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "emulated sm_90", static_cast<std::size_t>(size));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = std::size_t{8} << 30;
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{8} << 30;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = number("ATTN_EMULATED_MULTIPROCESSORS", 2);
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = kSharedBytes;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&memory);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return failed ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return cuCtxSynchronize(); }
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(&memory);
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy_v2(CUstream) { return CUDA_SUCCESS; }
// Work is done when it is asked for, so an event has only been recorded or not. On a GPU to wait
// for one that has not waits for nothing: here it is refused.
CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(new std::atomic<bool>(false));
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
  delete reinterpret_cast<std::atomic<bool>*>(event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream) {
  *reinterpret_cast<std::atomic<bool>*>(event) = true;
  return cuCtxSynchronize();
}
CUresult cuStreamWaitEvent(CUstream, CUevent event, unsigned) {
  return *reinterpret_cast<const std::atomic<bool>*>(event) ? cuCtxSynchronize()
                                                            : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  *id = reinterpret_cast<unsigned long long>(stream);
  return CUDA_SUCCESS;
}

// A "cubin" is the number of its bytes and then a shared object (nvrtc.cpp).
CUresult cuLibraryLoadData(CUlibrary* library, const void* data, int*, void**, unsigned, int*,
                           void**, unsigned) {
  std::size_t bytes = 0;
  std::memcpy(&bytes, data, sizeof(bytes));
  std::string path = "/tmp/attn_emulated_XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return CUDA_ERROR_INVALID_VALUE;
  const char* from = static_cast<const char*>(data) + sizeof(bytes);
  while (bytes > 0) {
    const ssize_t written = write(file, from, bytes);
    if (written <= 0) return CUDA_ERROR_INVALID_VALUE;
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
  close(file);
  auto* loaded = new Library;
  loaded->handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded->handle == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  unlink(path.c_str());
  if (loaded->handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  loaded->call = reinterpret_cast<void (*)(void**)>(dlsym(loaded->handle, "attn_emulated_call"));
  loaded->shared = static_cast<char*>(dlsym(loaded->handle, "attn_emulated_shared"));
  *library = reinterpret_cast<CUlibrary>(loaded);
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  reinterpret_cast<Library*>(library)->kernel = name;
  *kernel = reinterpret_cast<CUkernel>(library);
  return CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel, CUdevice) {
  *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 1 : 0;
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) {
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, std::size_t) {
  *blocks = 1;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void**) {
  const std::lock_guard lock(mutex);
  if (failed) return CUDA_ERROR_LAUNCH_FAILED;
  if (config->sharedMemBytes > kSharedBytes) return CUDA_ERROR_INVALID_VALUE;
  const auto* library = reinterpret_cast<const Library*>(function);
  note_launch(*library);
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      cluster = config->attrs[i].value.clusterDim.x;
    }
  }
  if (config->gridDimX % cluster != 0) return CUDA_ERROR_INVALID_VALUE;
  // A kernel that writes more shared memory than it was launched with leaves its mark there.
  const std::span rest(library->shared + config->sharedMemBytes,
                       kSharedBytes - config->sharedMemBytes);
  constexpr char kUntouched = static_cast<char>(0xff);
  std::ranges::fill(rest, kUntouched);
  failed = !emulator::launch({.grid = config->gridDimX,
                              .size = config->blockDimX,
                              .cluster = cluster,
                              .at_once = static_cast<unsigned>(number("ATTN_EMULATED_AT_ONCE", 1)),
                              .shared = library->shared,
                              .shared_bytes = config->sharedMemBytes,
                              .call = library->call,
                              .arguments = arguments},
                             static_cast<unsigned>(number("ATTN_EMULATED_SEED", 1)));
  if (std::ranges::any_of(rest, [](char byte) { return byte != kUntouched; })) {
    std::fprintf(stderr, "shared memory past the %u bytes of the launch was written\n",
                 config->sharedMemBytes);
    failed = true;
  }
  return failed ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cuProfilerStart() {
  profiling = true;
  return CUDA_SUCCESS;
}
CUresult cuProfilerStop() {
  profiling = false;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, std::uint32_t rank,
                                void* base, const std::uint64_t* dims, const std::uint64_t* strides,
                                const std::uint32_t* box, const std::uint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  emulator::Box b{};
  static_assert(sizeof(b) <= sizeof(*map));
  b.base = static_cast<char*>(base);
  b.rank = rank;
  b.element_bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
  for (std::uint32_t d = 0; d < rank; ++d) {
    if (dims[d] == 0) return static_cast<CUresult>(1);  // CUDA_ERROR_INVALID_VALUE, as a driver's
    b.dims[d] = static_cast<std::uint32_t>(dims[d]);
    b.box[d] = box[d];
    if (d + 1 < rank) b.strides[d] = strides[d];
  }
  std::memcpy(static_cast<void*>(map), &b, sizeof(b));
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  void* p = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (p == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<CUdeviceptr>(p);
  memory[*pointer] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
  const std::lock_guard lock(mutex);
  memory.erase(pointer);
  std::free(reinterpret_cast<void*>(pointer));
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr pointer) {
  const std::lock_guard lock(mutex);
  const auto above = memory.upper_bound(pointer);
  const bool known =
      above != memory.begin() && pointer < std::prev(above)->first + std::prev(above)->second;
  const auto [first, bytes] =
      known ? *std::prev(above) : std::pair<const CUdeviceptr, std::size_t>{};
  const int type = known ? CU_MEMORYTYPE_DEVICE : 0, zero = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) {
      std::memcpy(values[i], &first, sizeof(first));
    } else if (attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
      std::memcpy(values[i], &bytes, sizeof(bytes));
    } else {
      const bool asked = attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
      std::memcpy(values[i], asked ? &type : &zero, sizeof(type));
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace attn::cuda
