// The workers of one call: as many of the executor's as the plan says, however many it has.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

#include "attn/context.hpp"
#include "cpu/workspace.hpp"

namespace attn::cpu {

class Workers {
 public:
  // `count`: workers that a loop uses at most; the executor's concurrency() is a limit too. All
  // must outlive this.
  Workers(Executor& executor, int count, Workspace& workspace)
      : executor_(executor),
        count_(std::clamp(count, 1, std::max(1, executor.concurrency()))),
        workspace_(workspace) {}

  int count() const { return count_; }
  Workspace& workspace() const { return workspace_; }

  // Calls body(index, worker) for each index below count, as Executor::parallel_for does, with 0 <=
  // worker < count(): the executor runs a loop of one index a worker, and each of these takes
  // indices until none is left. The body is passed by reference, so that std::function has nothing
  // to allocate.
  template <class Body>
  void parallel_for(std::int64_t count, const Body& body) const {
    const std::int64_t workers = std::min<std::int64_t>(count, count_);
    if (workers <= 0) return;
    if (workers == 1) {  // a tiny call spends a tenth of its time on indices that threads share
      const auto all = [&](std::int64_t, int) {
        for (std::int64_t index = 0; index < count; ++index) body(index, 0);
      };
      return executor_.parallel_for(1, std::cref(all));
    }
    std::atomic<std::int64_t> next{0};
    const auto work = [&](std::int64_t worker, int) {
      for (;;) {
        const std::int64_t index = next.fetch_add(1, std::memory_order_relaxed);
        if (index >= count) return;
        body(index, static_cast<int>(worker));
      }
    };
    executor_.parallel_for(workers, std::cref(work));
  }

 private:
  Executor& executor_;
  int count_;
  Workspace& workspace_;
};

}  // namespace attn::cpu
