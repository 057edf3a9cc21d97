#include "traffic/counters.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>

#if defined(__linux__)
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace attn::traffic {

#if defined(__linux__)
namespace {

// One hardware event of the calling thread.
class Event {
 public:
  explicit Event(std::uint64_t config) {
    perf_event_attr attributes{};
    attributes.type = PERF_TYPE_HARDWARE;
    attributes.size = sizeof attributes;
    attributes.config = config;
    attributes.disabled = 1;
    attributes.exclude_kernel = 1;
    attributes.exclude_hv = 1;
    fd_ = static_cast<int>(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
    if (fd_ < 0) error_ = errno;
  }
  ~Event() {
    if (fd_ >= 0) close(fd_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  int error() const { return error_; }
  void start() const { ioctl(fd_, PERF_EVENT_IOC_ENABLE, 0); }
  void stop() const { ioctl(fd_, PERF_EVENT_IOC_DISABLE, 0); }
  double value() const {
    std::uint64_t count = 0;
    return read(fd_, &count, sizeof count) == sizeof count ? static_cast<double>(count) : 0;
  }

 private:
  int fd_ = -1, error_ = 0;
};

}  // namespace

CacheCounts count_caches(const std::function<void()>& call) {
  const Event references(PERF_COUNT_HW_CACHE_REFERENCES);
  const Event misses(PERF_COUNT_HW_CACHE_MISSES);
  CacheCounts counts;
  for (const Event* event : {&references, &misses}) {
    if (event->error() != 0) {
      counts.missing = std::string("perf_event_open: ") + std::strerror(event->error());
    }
  }
  if (!counts.missing.empty()) {
    call();
    return counts;
  }
  references.start();
  misses.start();
  call();
  misses.stop();
  references.stop();
  counts.references = references.value();
  counts.misses = misses.value();
  return counts;
}
#else
CacheCounts count_caches(const std::function<void()>& call) {
  call();
  return {.missing = "performance counters are read on Linux only"};
}
#endif

}  // namespace attn::traffic
