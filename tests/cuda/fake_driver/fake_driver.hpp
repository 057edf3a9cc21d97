// A libcuda.so.1 without a GPU, for what no test machine has: an old driver, two devices, errors
// that earlier work left. Device memory is host memory; kernels do not run.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda/driver/types.hpp"
#include "host.hpp"

namespace attn::cuda {

struct FakeDriver {
  // From FAKE_DRIVER_VERSION, FAKE_DRIVER_DEVICES and FAKE_DRIVER_INIT (a CUresult) when loaded;
  // FAKE_NVRTC_MAJOR likewise.
  int version = 12040;
  int devices = 2;
  CUresult init = CUDA_SUCCESS;

  struct Memory {
    std::size_t bytes = 0;
    CUmemorytype type = CU_MEMORYTYPE_DEVICE;
    int device = 0;
    bool managed = false;
  };
  std::map<CUdeviceptr, Memory> memory{};
  std::map<std::string, CUresult, std::less<>> failures{};  // of functions, by name, at every call

  std::map<CUstream, CUstreamCaptureStatus> captures{};  // streams not named: none

  // What was asked for last.
  CUlaunchConfig launch{};
  CUcontext launch_context = nullptr;  // current then
  std::size_t parameter_bytes = 0;     // of the first parameter, that a test wants to see
  std::vector<std::byte> parameter{};
  std::vector<CUlaunchAttribute> attributes{};
  int launches = 0;                          // so far
  std::atomic<int> dynamic_shared_bytes{0};  // allowed
  std::atomic<int> libraries{0};             // loaded and not unloaded
  // The compiler in the same library; ATTN_NVRTC names it.
  int nvrtc_major = 13;
  std::atomic<int> compilations{0};
  std::atomic<int> compiling{0}, most_compiling{0};  // at the same time
  std::atomic<int> compile_together{1};  // no compilation ends before so many have begun
};

// The primary context of a device, and another one of it.
inline CUcontext fake_context(int device, bool primary = true) {
  return reinterpret_cast<CUcontext>(static_cast<std::size_t>(primary ? 0x100 : 0x200) +
                                     static_cast<std::size_t>(device));
}

}  // namespace attn::cuda

// Exported by the fake library.
extern "C" attn::cuda::FakeDriver* attn_fake_driver();
extern "C" attn::cuda::DriverCalls* attn_fake_calls();
// The contexts of the calling thread, the current one last.
extern "C" std::vector<attn::cuda::CUcontext>* attn_fake_contexts();
