#include "cuda/driver/pointer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "cuda/driver/device.hpp"

namespace attn::cuda {
namespace {

// What was allocated at once: all of it is of one kind.
struct Allocation {
  CUdeviceptr first = 0;
  std::size_t bytes = 0;
  bool holds(CUdeviceptr address) const { return address - first < bytes; }
};

// Empty when the memory is of the device; then `found` is the allocation.
std::string what_is_wrong(CUdeviceptr address, int device, Allocation& found) {
  unsigned type = 0;  // stays 0 for memory that the driver has not heard of
  unsigned managed = 0;
  int ordinal = -1;
  std::array<CUpointer_attribute, 5> attributes{
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  std::array<void*, 5> values{&type, &managed, &ordinal, &found.first, &found.bytes};
  const CUresult result =
      api().cuPointerGetAttributes(attributes.size(), attributes.data(), values.data(), address);
  // Each call on a GPU comes here, and a text takes longer than the question.
  if (result != CUDA_SUCCESS) {
    check(result, fmt::format("cuPointerGetAttributes of {:#x}", address));
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
  // Allocators of frameworks cut tensors from few large allocations, and the driver takes longer to
  // answer than a call takes beside it: it is asked once an allocation.
  std::array<Allocation, 4> seen{};
  std::size_t count = 0;
  for (const core::NamedTensor& named : tensors) {
    const Tensor& t = named.tensor;
    if (!t.given() || t.size() == 0) continue;
    const auto address = reinterpret_cast<CUdeviceptr>(t.data);
    if (std::ranges::any_of(seen, [&](const Allocation& a) { return a.holds(address); })) continue;
    Allocation& found = seen[count++ % seen.size()];
    const std::string wrong = what_is_wrong(address, device, found);
    if (wrong.empty()) continue;
    check.refuse(
        fmt::format("{} is {} with data at address {}, which is {}; accepted is memory of "
                    "cuda:{} or managed memory",
                    to_string(named.name), to_string(t), fmt::ptr(t.data), wrong, device));
  }
}

std::int64_t alignment_of(const Tensor& t) {
  constexpr std::uint64_t kMost = 128;
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  // The lowest bit of all is the largest power of two that divides each.
  std::uint64_t bits = kMost | reinterpret_cast<std::uintptr_t>(t.data);
  for (std::int32_t k = 0; k < t.rank; ++k) {
    const bool row = k == t.rank - 1 && t.strides[k] == 1;
    if (!row && t.shape[k] > 1) bits |= static_cast<std::uint64_t>(t.strides[k] * size);
  }
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

}  // namespace attn::cuda
