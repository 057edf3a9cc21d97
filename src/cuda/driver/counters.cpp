#include "cuda/driver/counters.hpp"

#include <array>
#include <atomic>
#include <cstddef>

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
  // The stream of each counter, its number plus 1; 0: free. Taken once and kept, so that threads
  // read without waiting. A stream looks from a place of its own on, so that most find theirs
  // first.
  static std::array<std::atomic<unsigned long long>, device::kStreamCounters> streams{};
  const unsigned long long wanted = id + 1;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const std::size_t at = (wanted + i) % streams.size();
    unsigned long long found = streams[at].load(std::memory_order_relaxed);
    if (found == 0 && streams[at].compare_exchange_strong(found, wanted)) found = wanted;
    if (found == wanted) return static_cast<int>(at);
  }
  return device::kNoCounter;
}

}  // namespace attn::cuda
