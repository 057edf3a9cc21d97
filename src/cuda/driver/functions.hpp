// The functions of libcuda.so.1 and libnvrtc that this library uses: X(name, symbol, parameters).
// The symbol carries the version of the interface that the parameters are of.
#pragma once

#define ATTN_CUDA_DRIVER_FUNCTIONS(X)                                                              \
  X(cuInit, "cuInit", (unsigned))                                                                  \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int*))                                              \
  X(cuGetErrorName, "cuGetErrorName", (CUresult, const char**))                                    \
  X(cuGetErrorString, "cuGetErrorString", (CUresult, const char**))                                \
  X(cuDeviceGet, "cuDeviceGet", (CUdevice*, int))                                                  \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int*))                                                  \
  X(cuDeviceGetName, "cuDeviceGetName", (char*, int, CUdevice))                                    \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (std::size_t*, CUdevice))                             \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int*, CUdevice_attribute, CUdevice))            \
  X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int*, CUdevice, CUdevice))                    \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext*, CUdevice))                  \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext*))                                              \
  X(cuCtxGetDevice, "cuCtxGetDevice", (CUdevice*))                                                 \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext))                                          \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext*))                                           \
  X(cuCtxSynchronize, "cuCtxSynchronize", ())                                                      \
  X(cuLibraryLoadData, "cuLibraryLoadData",                                                        \
    (CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned))                     \
  X(cuLibraryUnload, "cuLibraryUnload", (CUlibrary))                                               \
  X(cuLibraryGetKernel, "cuLibraryGetKernel", (CUkernel*, CUlibrary, const char*))                 \
  X(cuKernelGetFunction, "cuKernelGetFunction", (CUfunction*, CUkernel))                           \
  X(cuKernelGetAttribute, "cuKernelGetAttribute",                                                  \
    (int*, CUfunction_attribute, CUkernel, CUdevice))                                              \
  X(cuKernelSetAttribute, "cuKernelSetAttribute", (CUfunction_attribute, int, CUkernel, CUdevice)) \
  X(cuLaunchKernelEx, "cuLaunchKernelEx", (const CUlaunchConfig*, CUfunction, void**, void**))     \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor",    \
    (int*, CUfunction, int, std::size_t))                                                          \
  X(cuOccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters",                                  \
    (int*, CUfunction, const CUlaunchConfig*))                                                     \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                              \
    (CUtensorMap*, CUtensorMapDataType, std::uint32_t, void*, const std::uint64_t*,                \
     const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, CUtensorMapInterleave,      \
     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill))                         \
  X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr*, std::size_t))                                      \
  X(cuMemAllocManaged, "cuMemAllocManaged", (CUdeviceptr*, std::size_t, unsigned))                 \
  X(cuMemFree, "cuMemFree_v2", (CUdeviceptr))                                                      \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (std::size_t*, std::size_t*))                                 \
  X(cuMemcpyAsync, "cuMemcpyAsync", (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))             \
  X(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, std::size_t, CUstream))       \
  X(cuMemsetD32Async, "cuMemsetD32Async", (CUdeviceptr, unsigned, std::size_t, CUstream))          \
  X(cuPointerGetAttributes, "cuPointerGetAttributes",                                              \
    (unsigned, CUpointer_attribute*, void**, CUdeviceptr))                                         \
  X(cuStreamCreate, "cuStreamCreate", (CUstream*, unsigned))                                       \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream))                                             \
  X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                        \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream, CUevent, unsigned))                         \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", (CUstream, CUstreamCaptureStatus*))                \
  X(cuStreamGetId, "cuStreamGetId", (CUstream, unsigned long long*))                               \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream, CUstreamCaptureMode))              \
  X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph*))                                \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode",                        \
    (CUstreamCaptureMode*))                                                                        \
  X(cuEventCreate, "cuEventCreate", (CUevent*, unsigned))                                          \
  X(cuEventDestroy, "cuEventDestroy_v2", (CUevent))                                                \
  X(cuEventRecord, "cuEventRecord", (CUevent, CUstream))                                           \
  X(cuEventSynchronize, "cuEventSynchronize", (CUevent))                                           \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float*, CUevent, CUevent))                          \
  X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                                    \
    (CUgraphExec*, CUgraph, unsigned long long))                                                   \
  X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                       \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec))                                       \
  X(cuGraphDestroy, "cuGraphDestroy", (CUgraph))

#define ATTN_NVRTC_FUNCTIONS(X)                                                             \
  X(nvrtcVersion, "nvrtcVersion", (int*, int*))                                             \
  X(nvrtcCreateProgram, "nvrtcCreateProgram",                                               \
    (nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*)) \
  X(nvrtcDestroyProgram, "nvrtcDestroyProgram", (nvrtcProgram*))                            \
  X(nvrtcCompileProgram, "nvrtcCompileProgram", (nvrtcProgram, int, const char* const*))    \
  X(nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize", (nvrtcProgram, std::size_t*))         \
  X(nvrtcGetProgramLog, "nvrtcGetProgramLog", (nvrtcProgram, char*))                        \
  X(nvrtcGetPTXSize, "nvrtcGetPTXSize", (nvrtcProgram, std::size_t*))                       \
  X(nvrtcGetPTX, "nvrtcGetPTX", (nvrtcProgram, char*))                                      \
  X(nvrtcGetCUBINSize, "nvrtcGetCUBINSize", (nvrtcProgram, std::size_t*))                   \
  X(nvrtcGetCUBIN, "nvrtcGetCUBIN", (nvrtcProgram, char*))
