// A fork-join pool. Every worker but the caller owns a slot: the caller offers work there, takes
// offers back that nobody took up in time, and waits for the rest. So a loop never waits for a
// worker that has nothing left to do, and a worker that is slow to wake costs nothing.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attn/context.hpp"
#include "attn/error.hpp"
#include "core/first_made.hpp"
#include "core/fork_safe.hpp"
#include "cpu/available_cpus.hpp"
#include "cpu/num_threads.hpp"

namespace attn {
namespace {

using Body = std::function<void(std::int64_t index, int worker)>;

// Waking a parked thread takes 5 to 50 us; spinning as long bridges the gaps between the loops of
// one call at no more than twice the cost of the better choice.
constexpr std::chrono::microseconds kSpin(30);
constexpr std::size_t kCacheLine = 64;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

enum State : std::uint32_t { kIdle, kOffered, kRunning, kStop };

struct alignas(kCacheLine) Slot {
  std::atomic<std::uint32_t> state{kIdle};

  // Returns once the state is not `old`: spins for kSpin, then parks.
  void wait_while(State old) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int n = 0; n < 32; ++n) {
        if (state.load(std::memory_order_acquire) != old) return;
        pause();
      }
    } while (std::chrono::steady_clock::now() < deadline);
    state.wait(old, std::memory_order_acquire);
  }

  void set(State value) {
    state.store(value, std::memory_order_release);
    state.notify_one();
  }

  bool exchange(State old, State value) {
    std::uint32_t expected = old;
    return state.compare_exchange_strong(expected, value, std::memory_order_acq_rel);
  }
};

// One parallel_for. Lives on the caller's stack until every worker that entered has left.
class Loop {
 public:
  Loop(std::int64_t count, const Body& body) : count_(count), body_(body) {}

  void work(int worker) noexcept {
    try {
      while (!failed_.load(std::memory_order_relaxed)) {
        const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
        if (index >= count_) return;
        body_(index, worker);
      }
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  // After all workers have left.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const std::int64_t count_;
  const Body& body_;
  alignas(kCacheLine) std::atomic<std::int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

// Threads that help the callers of loops, started as they are needed and kept. A child of fork()
// has none of them, and starts its own.
class Workers final : private core::ForkHandler {
 public:
  Workers() = default;
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Starts as many at least as `helpers`, unless a loop runs, which starts its own. Throws
  // Error(unavailable) where the system does not.
  void prepare(std::size_t helpers) {
    if (busy_.exchange(true, std::memory_order_acquire)) return;
    const std::string why = start(helpers);
    const std::size_t started = threads_.size();
    busy_.store(false, std::memory_order_release);
    if (started < helpers) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("threads is {}; only {} could be started ({})", helpers + 1,
                              started + 1, why));
    }
  }

  // Executor::parallel_for with up to `most_helpers` beside the caller.
  void run(std::int64_t count, const Body& body, std::size_t most_helpers) {
    if (count <= 0) return;
    if (count == 1) return body(0, 0);
    std::size_t helpers = std::min(static_cast<std::size_t>(count - 1), most_helpers);
    Loop loop(count, body);
    // A loop inside a body, or beside another one, runs on its caller alone.
    if (helpers == 0 || busy_.exchange(true, std::memory_order_acquire)) {
      loop.work(0);
    } else {
      if (threads_.size() < helpers) start(helpers);
      helpers = std::min(helpers, threads_.size());
      loop_ = &loop;
      for (std::size_t i = 0; i < helpers; ++i) slots_[i].set(kOffered);
      loop.work(0);
      for (std::size_t i = 0; i < helpers; ++i) {
        if (!slots_[i].exchange(kOffered, kIdle)) slots_[i].wait_while(kRunning);
      }
      busy_.store(false, std::memory_order_release);
    }
    loop.rethrow();
  }

  // Ends the workers unless they are at work; loops run on their caller alone from then on.
  void retire() {
    if (!busy_.exchange(true, std::memory_order_acquire)) stop();
  }

 private:
  // By who holds busy_. What the system said where there are fewer then.
  std::string start(std::size_t helpers) {
    try {
      threads_.reserve(helpers);
      while (threads_.size() < helpers) {
        const std::size_t i = threads_.size();
        if (slots_.size() == i) slots_.emplace_back();
        threads_.emplace_back(
            [this, &slot = slots_[i], i] { serve(slot, static_cast<int>(i) + 1); });
      }
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }

  void serve(Slot& slot, int worker) {
    for (;;) {
      slot.wait_while(kIdle);
      if (slot.exchange(kOffered, kRunning)) {
        loop_->work(worker);
        slot.set(kIdle);
      } else if (slot.state.load(std::memory_order_acquire) == kStop) {
        return;
      }
    }
  }

  void stop() {
    for (std::size_t i = 0; i < threads_.size(); ++i) slots_[i].set(kStop);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void lock_before_fork() override {}
  void unlock_in_parent() override {}
  // The child has the handles, not the threads: joining them fails, and a handle that is destroyed
  // unjoined ends the process. Its memory takes an empty one instead. The one thread of the child
  // may be inside a loop, whose slots are then idle.
  void renew_in_child() override {
    for (std::thread& thread : threads_) std::construct_at(&thread);
    threads_.clear();
    for (Slot& slot : slots_) slot.state.store(kIdle, std::memory_order_relaxed);
    busy_.store(false, std::memory_order_relaxed);
  }

  std::deque<Slot> slots_;  // which stay where they are as more are added
  std::vector<std::thread> threads_;
  std::atomic<bool> busy_{false};
  Loop* loop_ = nullptr;  // of the caller that holds busy_; read by workers that took an offer
};

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) : threads_(threads) { workers_.prepare(helpers()); }

  int concurrency() const noexcept override { return threads_; }
  void parallel_for(std::int64_t count, const Body& body) override {
    workers_.run(count, body, helpers());
  }

 private:
  std::size_t helpers() const { return static_cast<std::size_t>(threads_ - 1); }

  const int threads_;
  Workers workers_;
};

// The workers of all shared executors. Never destroyed, so that static destructors may use them:
// they end with the process's static objects, and loops run on their caller alone from then on.
Workers& shared_workers() {
  static constinit core::FirstMade<Workers> made;
  Workers& workers = made.get([] { return Workers(); });
  static std::atomic<bool> is_told{false};
  if (!is_told.exchange(true)) std::atexit([] { shared_workers().retire(); });
  return workers;
}

// Up to as many of these workers for a loop, and the memory that calls keep for the next ones.
class SharedExecutor final : public Executor {
 public:
  SharedExecutor(const Executor& first, int threads) : Executor(first), threads_(threads) {}

  int concurrency() const noexcept override { return threads_; }
  void parallel_for(std::int64_t count, const Body& body) override {
    shared_workers().run(count, body, static_cast<std::size_t>(threads_ - 1));
  }

 private:
  const int threads_;
};

}  // namespace

std::shared_ptr<Executor> make_thread_pool(int threads) {
  if (threads < 0 || threads > cpu::kMaxThreads) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("threads is {}; accepted are 0 (one for each CPU) to {}", threads,
                            cpu::kMaxThreads));
  }
  return std::make_shared<ThreadPool>(threads == 0 ? cpu::available_cpus() : threads);
}

std::shared_ptr<Executor> shared_executor(int threads) {
  // Executors are added to a list and never leave it, so that it needs no lock, which a child of
  // fork() might find held.
  struct Shared {
    int threads;
    std::shared_ptr<Executor> executor;
    Shared* next;
  };
  static constinit core::FirstMade<const std::shared_ptr<Executor>> made_one;
  const auto& one = made_one.get([] { return std::make_shared<ThreadPool>(1); });
  static std::atomic<Shared*> first{nullptr};
  const auto find = [threads](Shared* from) {
    while (from != nullptr && from->threads != threads) from = from->next;
    return from;
  };
  Shared* head = first.load(std::memory_order_acquire);
  if (Shared* const known = find(head)) return known->executor;
  if (threads < 1 || threads > cpu::kMaxThreads) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("threads is {}; accepted are 1 to {}", threads, cpu::kMaxThreads));
  }
  shared_workers().prepare(static_cast<std::size_t>(threads - 1));
  auto made = std::make_unique<Shared>(
      Shared{threads, std::make_shared<SharedExecutor>(*one, threads), nullptr});
  do {
    if (Shared* const known = find(head)) return known->executor;  // another thread was first
    made->next = head;
  } while (!first.compare_exchange_weak(head, made.get(), std::memory_order_acq_rel));
  return made.release()->executor;
}

std::shared_ptr<Executor> default_executor() { return shared_executor(get_num_threads()); }

}  // namespace attn
