// Threads, and what the machine is.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "attn/attn.h"
#include "attn/context.hpp"
#include "attn/machine.hpp"
#include "c/boundary.hpp"
#include "c/handles.hpp"

namespace attn::c {
namespace {

// The first exception of a loop's bodies, kept while the caller's threads run the others: none may
// pass through their functions.
class Loop {
 public:
  using Body = std::function<void(std::int64_t, int)>;
  explicit Loop(const Body& body) : body_(body) {}

  static void run(void* loop, std::int64_t index, std::int32_t worker) {
    static_cast<Loop*>(loop)->run_one(index, worker);
  }
  void rethrow() const {
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  }

 private:
  void run_one(std::int64_t index, int worker) noexcept {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      body_(index, worker);
    } catch (...) {
      if (!failed_.exchange(true)) thrown_ = std::current_exception();
    }
  }

  const Body& body_;
  std::atomic<bool> failed_{false};
  std::exception_ptr thrown_{};
};

class WrappedExecutor final : public Executor {
 public:
  explicit WrappedExecutor(const attn_executor_functions& functions) : functions_(functions) {}
  int concurrency() const noexcept override { return functions_.concurrency; }
  void parallel_for(std::int64_t count, const Loop::Body& body) override {
    Loop loop(body);
    functions_.parallel_for(functions_.data, count, &Loop::run, &loop);
    loop.rethrow();
  }

 private:
  const attn_executor_functions functions_;
};

}  // namespace
}  // namespace attn::c

using attn::c::guarded;

attn_status attn_executor_make(int32_t threads, attn_executor** executor) {
  return guarded([&] {
    attn_executor*& made = attn::c::result("executor", executor);
    made = new attn_executor{attn::make_thread_pool(threads)};
  });
}

attn_status attn_executor_wrap(const attn_executor_functions* functions, attn_executor** executor) {
  return guarded([&] {
    attn_executor*& made = attn::c::result("executor", executor);
    const attn_executor_functions from =
        attn::c::taken("functions", &attn::c::needed("functions", functions));
    if (from.parallel_for == nullptr || from.concurrency < 1 || from.reserved != 0) {
      attn::c::refuse("parallel_for is " +
                      std::string(from.parallel_for == nullptr ? "null" : "given") +
                      ", concurrency " + std::to_string(from.concurrency) + ", reserved " +
                      std::to_string(from.reserved) + "; accepted are a function, 1 and up, and 0");
    }
    made = new attn_executor{std::make_shared<attn::c::WrappedExecutor>(from)};
  });
}

void attn_executor_free(attn_executor* executor) { delete executor; }

attn_status attn_set_num_threads(int32_t threads) {
  return guarded([&] { attn::set_num_threads(threads); });
}

attn_status attn_get_num_threads(int32_t* threads) {
  return guarded([&] { attn::c::result("threads", threads) = attn::get_num_threads(); });
}

attn_status attn_describe_machine(attn_machine* machine) {
  return guarded([&] {
    static_cast<void>(attn::c::needed("machine", machine));
    const attn::Machine found = attn::describe_machine();
    attn_machine told{};
    const std::size_t shown = std::min(found.cpu.size(), sizeof(told.cpu) - 1);
    std::copy_n(found.cpu.begin(), shown, told.cpu);
    told.cpus = found.cpus;
    told.l1d_bytes = found.l1d_bytes;
    told.l2_bytes = found.l2_bytes;
    told.l3_bytes = found.l3_bytes;
    told.memory_bytes = found.memory_bytes;
    for (const attn::InstructionSetInfo& set : attn::instruction_sets()) {
      if (set.available) told.isa = attn::name(set.isa).data();  // a literal: ends with 0
    }
    attn::c::give("machine", told, machine);
  });
}
