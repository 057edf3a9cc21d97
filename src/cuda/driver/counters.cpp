#include "cuda/driver/counters.hpp"

#include <mutex>
#include <unordered_map>

#include "cuda/device/params.cuh"
#include "cuda/driver/api.hpp"

namespace attn::cuda {

int work_counter(void* stream) {
  const auto handle = static_cast<CUstream>(stream);
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  check(api().cuStreamIsCapturing(handle, &capture), "cuStreamIsCapturing");
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) return device::kGridCounter;
  unsigned long long id = 0;
  check(api().cuStreamGetId(handle, &id), "cuStreamGetId");
  static std::mutex mutex;
  static auto* const of_stream =
      new std::unordered_map<unsigned long long, int>;  // never destroyed
  const std::lock_guard lock(mutex);
  const auto known = of_stream->find(id);
  if (known != of_stream->end()) return known->second;
  const auto used = static_cast<int>(of_stream->size());
  if (used == device::kStreamCounters) return device::kNoCounter;
  of_stream->emplace(id, used);
  return used;
}

}  // namespace attn::cuda
