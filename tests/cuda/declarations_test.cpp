// Our declarations of the driver and of NVRTC beside those of the CUDA toolkit: sizes, offsets,
// numbers and parameters. Built only where there is a toolkit; the comparison is made by the
// compiler.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "cuda/driver/functions.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/driver/types.hpp"

namespace attn::cuda {
// NOLINTBEGIN(bugprone-macro-parentheses): names and lists of types
// The types of our functions, before cuda.h gives some of their names another meaning.
#define ATTN_TYPE(name, symbol, parameters) using Type_##name = CUresult(*) parameters;
ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_TYPE)
#undef ATTN_TYPE
#define ATTN_TYPE(name, symbol, parameters) using Type_##name = nvrtcResult(*) parameters;
ATTN_NVRTC_FUNCTIONS(ATTN_TYPE)
#undef ATTN_TYPE
// NOLINTEND(bugprone-macro-parentheses)
}  // namespace attn::cuda

#include <cuda.h>
#include <nvrtc.h>

namespace ours = attn::cuda;

namespace {

// As many parameters, each of the same size and kind.
template <class A, class B>
constexpr bool kAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> ==
                                  std::is_pointer_v<B>&& std::is_floating_point_v<A> ==
                                  std::is_floating_point_v<B>;
template <class A, class B>
struct Same : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct Same<R (*)(A...), S (*)(B...)>
    : std::bool_constant<sizeof(R) == sizeof(S) && (kAlike<A, B> && ...)> {
};

#define ATTN_SAME(name, symbol, parameters) \
  static_assert(Same<ours::Type_##name, decltype(&::name)>::value, #name);
ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_SAME)
ATTN_NVRTC_FUNCTIONS(ATTN_SAME)

// It can tell: a parameter too few, a parameter of another size.
static_assert(!Same<int (*)(int), int (*)(int, int)>::value);
static_assert(!Same<int (*)(int), int (*)(long)>::value);

#define ATTN_NUMBER(name) \
  static_assert(static_cast<long long>(ours::name) == static_cast<long long>(::name), #name)
ATTN_NUMBER(CUDA_SUCCESS);
ATTN_NUMBER(CUDA_ERROR_INVALID_VALUE);
ATTN_NUMBER(CUDA_ERROR_OUT_OF_MEMORY);
ATTN_NUMBER(CUDA_ERROR_STUB_LIBRARY);
ATTN_NUMBER(CUDA_ERROR_NO_DEVICE);
ATTN_NUMBER(CUDA_ERROR_INVALID_IMAGE);
ATTN_NUMBER(CUDA_ERROR_NO_BINARY_FOR_GPU);
ATTN_NUMBER(CUDA_ERROR_ECC_UNCORRECTABLE);
ATTN_NUMBER(CUDA_ERROR_NVLINK_UNCORRECTABLE);
ATTN_NUMBER(CUDA_ERROR_CONTAINED);
ATTN_NUMBER(CUDA_ERROR_ILLEGAL_ADDRESS);
ATTN_NUMBER(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
ATTN_NUMBER(CUDA_ERROR_LAUNCH_TIMEOUT);
ATTN_NUMBER(CUDA_ERROR_CONTEXT_IS_DESTROYED);
ATTN_NUMBER(CUDA_ERROR_ASSERT);
ATTN_NUMBER(CUDA_ERROR_HARDWARE_STACK_ERROR);
ATTN_NUMBER(CUDA_ERROR_ILLEGAL_INSTRUCTION);
ATTN_NUMBER(CUDA_ERROR_MISALIGNED_ADDRESS);
ATTN_NUMBER(CUDA_ERROR_INVALID_ADDRESS_SPACE);
ATTN_NUMBER(CUDA_ERROR_INVALID_PC);
ATTN_NUMBER(CUDA_ERROR_LAUNCH_FAILED);
ATTN_NUMBER(CUDA_ERROR_TENSOR_MEMORY_LEAK);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
ATTN_NUMBER(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
ATTN_NUMBER(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
ATTN_NUMBER(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
ATTN_NUMBER(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
ATTN_NUMBER(CU_FUNC_ATTRIBUTE_NUM_REGS);
ATTN_NUMBER(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
ATTN_NUMBER(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
ATTN_NUMBER(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
ATTN_NUMBER(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
ATTN_NUMBER(CU_POINTER_ATTRIBUTE_IS_MANAGED);
ATTN_NUMBER(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
ATTN_NUMBER(CU_MEMORYTYPE_HOST);
ATTN_NUMBER(CU_MEMORYTYPE_DEVICE);
ATTN_NUMBER(CU_MEMORYTYPE_ARRAY);
ATTN_NUMBER(CU_MEMORYTYPE_UNIFIED);
ATTN_NUMBER(CU_STREAM_CAPTURE_MODE_GLOBAL);
ATTN_NUMBER(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
ATTN_NUMBER(CU_STREAM_CAPTURE_MODE_RELAXED);
ATTN_NUMBER(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
ATTN_NUMBER(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
ATTN_NUMBER(CU_TENSOR_MAP_DATA_TYPE_UINT8);
ATTN_NUMBER(CU_TENSOR_MAP_DATA_TYPE_INT32);
ATTN_NUMBER(CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
ATTN_NUMBER(CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
ATTN_NUMBER(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
ATTN_NUMBER(CU_TENSOR_MAP_SWIZZLE_NONE);
ATTN_NUMBER(CU_TENSOR_MAP_SWIZZLE_32B);
ATTN_NUMBER(CU_TENSOR_MAP_SWIZZLE_64B);
ATTN_NUMBER(CU_TENSOR_MAP_SWIZZLE_128B);
ATTN_NUMBER(CU_TENSOR_MAP_L2_PROMOTION_NONE);
ATTN_NUMBER(CU_TENSOR_MAP_L2_PROMOTION_L2_64B);
ATTN_NUMBER(CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
ATTN_NUMBER(CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
ATTN_NUMBER(CU_STREAM_DEFAULT);
ATTN_NUMBER(CU_STREAM_NON_BLOCKING);
ATTN_NUMBER(CU_EVENT_DEFAULT);
ATTN_NUMBER(CU_EVENT_DISABLE_TIMING);
ATTN_NUMBER(CU_MEM_ATTACH_GLOBAL);
ATTN_NUMBER(CU_TENSOR_MAP_INTERLEAVE_NONE);
ATTN_NUMBER(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
ATTN_NUMBER(NVRTC_SUCCESS);
ATTN_NUMBER(NVRTC_ERROR_OUT_OF_MEMORY);
ATTN_NUMBER(NVRTC_ERROR_INVALID_OPTION);
ATTN_NUMBER(NVRTC_ERROR_COMPILATION);

#define ATTN_SIZE(type) static_assert(sizeof(ours::type) == sizeof(::type), #type)
ATTN_SIZE(CUdevice);
ATTN_SIZE(CUdeviceptr);
ATTN_SIZE(CUresult);
ATTN_SIZE(CUlaunchAttributeID);
ATTN_SIZE(CUlaunchAttributeValue);
ATTN_SIZE(CUlaunchAttribute);
ATTN_SIZE(CUlaunchConfig);
ATTN_SIZE(CUtensorMap);
static_assert(alignof(ours::CUtensorMap) >= 64 && alignof(::CUtensorMap) >= 64);
static_assert(alignof(ours::CUlaunchAttribute) == alignof(::CUlaunchAttribute));

#define ATTN_OFFSET(type, member) \
  static_assert(offsetof(ours::type, member) == offsetof(::type, member), #type "." #member)
ATTN_OFFSET(CUlaunchAttribute, id);
ATTN_OFFSET(CUlaunchAttribute, value);
ATTN_OFFSET(CUlaunchAttributeValue, clusterDim);
ATTN_OFFSET(CUlaunchAttributeValue, programmaticStreamSerializationAllowed);
ATTN_OFFSET(CUlaunchConfig, gridDimX);
ATTN_OFFSET(CUlaunchConfig, gridDimY);
ATTN_OFFSET(CUlaunchConfig, gridDimZ);
ATTN_OFFSET(CUlaunchConfig, blockDimX);
ATTN_OFFSET(CUlaunchConfig, blockDimY);
ATTN_OFFSET(CUlaunchConfig, blockDimZ);
ATTN_OFFSET(CUlaunchConfig, sharedMemBytes);
ATTN_OFFSET(CUlaunchConfig, hStream);
ATTN_OFFSET(CUlaunchConfig, attrs);
ATTN_OFFSET(CUlaunchConfig, numAttrs);

TEST(Declarations, AreThoseOfTheToolkit) {
  SUCCEED() << "compared with CUDA " << CUDA_VERSION << " when this was built";
}

}  // namespace
