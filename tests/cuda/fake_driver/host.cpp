#include "host.hpp"

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace attn::cuda {

std::vector<CUcontext>& contexts() {
  static thread_local std::vector<CUcontext> own;
  return own;
}

DriverCalls& driver_calls() {
  static DriverCalls calls{};
  return calls;
}

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

extern "C" {

DriverCalls* attn_fake_calls() { return &driver_calls(); }

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  count_call(DriverFunction::cuDeviceGet);
  *device = ordinal;
  return CUDA_SUCCESS;
}
// ATTN_FAKE_PEER_ACCESS=0: no GPU reads another's memory.
CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  count_call(DriverFunction::cuDeviceCanAccessPeer);
  *can = number("ATTN_FAKE_PEER_ACCESS", 1);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  count_call(DriverFunction::cuCtxGetCurrent);
  *context = contexts().empty() ? nullptr : contexts().back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  count_call(DriverFunction::cuCtxPushCurrent);
  contexts().push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  count_call(DriverFunction::cuCtxPopCurrent);
  *context = contexts().back();
  contexts().pop_back();
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  count_call(DriverFunction::cuKernelGetFunction);
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) {
  count_call(DriverFunction::cuThreadExchangeStreamCaptureMode);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream) {
  count_call(DriverFunction::cuMemcpyAsync);
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream) {
  count_call(DriverFunction::cuMemsetD8Async);
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream) {
  count_call(DriverFunction::cuMemsetD32Async);
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(reinterpret_cast<char*>(to) + 4 * i, &value, sizeof(value));
  }
  return CUDA_SUCCESS;
}

}  // extern "C"

}  // namespace attn::cuda
