#include "cuda/driver/pointer.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <string>

#include "cuda/driver/device.hpp"

namespace attn::cuda {
namespace {

// Empty when the memory is of the device.
std::string what_is_wrong(const void* data, int device) {
  unsigned type = 0;  // stays 0 for memory that the driver has not heard of
  unsigned managed = 0;
  int ordinal = -1;
  std::array<CUpointer_attribute, 3> attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 3> values{&type, &managed, &ordinal};
  const CUresult result = api().cuPointerGetAttributes(
      attributes.size(), attributes.data(), values.data(), reinterpret_cast<CUdeviceptr>(data));
  // Each call on a GPU comes here for each tensor, and a text takes longer than the question.
  if (result != CUDA_SUCCESS) {
    check(result, fmt::format("cuPointerGetAttributes of {}", fmt::ptr(data)));
  }
  if (managed != 0) return {};
  if (type == 0) return "memory that the driver does not know, as of malloc";
  if (type == CU_MEMORYTYPE_HOST) return "page-locked memory of the host";
  if (type != CU_MEMORYTYPE_DEVICE) return "an array, not linear memory";
  if (ordinal != device) return fmt::format("memory of cuda:{}", ordinal);
  return {};
}

}  // namespace

void check_memory(const Problem& problem, std::span<const core::NamedTensor> tensors, int device) {
  check_memory(core::ArgumentCheck(&problem, {DeviceType::cuda, device}), tensors, device);
}

void check_memory(const core::ArgumentCheck& check, std::span<const core::NamedTensor> tensors,
                  int device) {
  device_info(device);  // refuses a device that is not there
  const ContextGuard guard(device);
  for (const core::NamedTensor& named : tensors) {
    const Tensor& t = named.tensor;
    if (t.size() == 0) continue;
    const std::string wrong = what_is_wrong(t.data, device);
    if (wrong.empty()) continue;
    check.refuse(
        fmt::format("{} is {} with data at address {}, which is {}; accepted is memory of "
                    "cuda:{} or managed memory",
                    to_string(named.name), to_string(t), fmt::ptr(t.data), wrong, device));
  }
}

std::int64_t alignment_of(const Tensor& t) {
  constexpr std::int64_t kMost = 128;
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  auto alignment =
      std::gcd(kMost, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data) % kMost));
  for (std::int32_t k = 0; k < t.rank; ++k) {
    const bool row = k == t.rank - 1 && t.strides[k] == 1;
    if (!row && t.shape[k] > 1) alignment = std::gcd(alignment, std::abs(t.strides[k] * size));
  }
  return alignment;
}

}  // namespace attn::cuda
