#include "cuda/driver/counters.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cuda/driver/api.hpp"
#include "cuda/driver/memory.hpp"

namespace attn::cuda {
namespace {

// One counter a cache line, so that streams do not wait for each other.
constexpr std::size_t kStep = 128, kCounters = 512;

struct Pool {
  DeviceBuffer memory;
  std::size_t used = 0;
  std::unordered_map<unsigned long long, std::size_t> of_stream;

  explicit Pool(int device) : memory(device, kStep * kCounters) {
    memory.fill(0);
    synchronize(device);
  }
  unsigned* take(std::size_t index) const {
    return reinterpret_cast<unsigned*>(static_cast<char*>(memory.data()) + kStep * index);
  }
};

std::mutex pools_mutex;

// Leaked on purpose: the driver may be gone when static objects are destroyed.
std::map<int, std::unique_ptr<Pool>>& pools() {
  static auto* all = new std::map<int, std::unique_ptr<Pool>>;
  return *all;
}

}  // namespace

void prepare_work_counters(int device) {
  const std::lock_guard lock(pools_mutex);
  std::unique_ptr<Pool>& pool = pools()[device];
  if (pool == nullptr) pool = std::make_unique<Pool>(device);
}

unsigned* work_counter(int device, void* stream) {
  const ContextGuard guard(device);
  const auto handle = static_cast<CUstream>(stream);
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  check(api().cuStreamIsCapturing(handle, &capture), "cuStreamIsCapturing");
  const bool captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
  if (!captured) prepare_work_counters(device);
  const std::lock_guard lock(pools_mutex);
  const auto found = pools().find(device);
  if (found == pools().end() || found->second == nullptr) return nullptr;
  Pool& pool = *found->second;
  if (captured) return pool.used < kCounters ? pool.take(pool.used++) : nullptr;
  unsigned long long id = 0;
  check(api().cuStreamGetId(handle, &id), "cuStreamGetId");
  const auto known = pool.of_stream.find(id);
  if (known != pool.of_stream.end()) return pool.take(known->second);
  if (pool.used == kCounters) return nullptr;
  pool.of_stream.emplace(id, pool.used);
  return pool.take(pool.used++);
}

}  // namespace attn::cuda
