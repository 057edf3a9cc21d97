// The processor's own counts of cache misses, where the system allows them.
#pragma once

#include <functional>
#include <string>

namespace attn::traffic {

struct CacheCounts {
  // Lines of 64 bytes, counted in user space on the calling thread.
  double references = 0;  // of the last-level cache: what L2 missed
  double misses = 0;      // of the last-level cache: what memory served
  std::string missing;    // why there are none; empty where there are
};

// Counts while call() runs; runs it where nothing can be counted, too.
CacheCounts count_caches(const std::function<void()>& call);

}  // namespace attn::traffic
