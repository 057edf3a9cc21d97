#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "attn/context.hpp"
#include "attn/error.hpp"
#include "cpu/available_cpus.hpp"

namespace attn {
namespace {

// Runs a loop on `pool` and checks the whole contract of parallel_for.
void check_loop(Executor& pool, std::int64_t count) {
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
  std::vector<std::atomic<int>> active(static_cast<std::size_t>(pool.concurrency()));
  std::atomic<int> violations{0};
  pool.parallel_for(count, [&](std::int64_t index, int worker) {
    if (index < 0 || index >= count || worker < 0 || worker >= pool.concurrency()) {
      ++violations;
      return;
    }
    if (active[static_cast<std::size_t>(worker)].fetch_add(1) != 0) ++violations;
    ++calls[static_cast<std::size_t>(index)];
    active[static_cast<std::size_t>(worker)].fetch_sub(1);
  });
  EXPECT_EQ(violations, 0);
  for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(calls[static_cast<std::size_t>(i)], 1) << i;
}

TEST(ThreadPool, CallsEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    const auto pool = make_thread_pool(threads);
    EXPECT_EQ(pool->concurrency(), threads);
    for (const std::int64_t count : {0, 1, 2, 3, 7, 100, 5000}) check_loop(*pool, count);
  }
}

TEST(ThreadPool, NegativeCountDoesNothing) {
  make_thread_pool(2)->parallel_for(-3, [](std::int64_t, int) { FAIL(); });
}

// Each body waits for all others, so the loop ends only if all workers run at once.
void meet(Executor& pool) {
  const int workers = pool.concurrency();
  std::atomic<int> arrived{0};
  pool.parallel_for(workers, [&](std::int64_t, int) {
    ++arrived;
    while (arrived < workers) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, workers);
}

TEST(ThreadPool, UsesAllWorkers) { meet(*make_thread_pool(4)); }

TEST(ThreadPool, IndicesStartInIncreasingOrder) {
  const auto pool = make_thread_pool(3);
  std::vector<std::vector<std::int64_t>> seen(3);
  pool->parallel_for(10000, [&](std::int64_t index, int worker) {
    seen[static_cast<std::size_t>(worker)].push_back(index);
  });
  for (const auto& indices : seen) EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end()));
}

TEST(ThreadPool, WritesAreVisibleAfterTheLoop) {
  const auto pool = make_thread_pool(4);
  std::vector<std::int64_t> values(1000);
  for (int round = 0; round < 500; ++round) {
    pool->parallel_for(
        1000, [&](std::int64_t index, int) { values[static_cast<std::size_t>(index)] += index; });
  }
  for (std::int64_t i = 0; i < 1000; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], 500 * i);
}

TEST(ThreadPool, ManyShortLoops) {
  const auto pool = make_thread_pool(4);
  std::int64_t total = 0;
  for (int round = 0; round < 20000; ++round) {
    std::atomic<std::int64_t> sum{0};
    pool->parallel_for(round % 9, [&](std::int64_t index, int) { sum += index; });
    total += sum;
  }
  std::int64_t expected = 0;
  for (int round = 0; round < 20000; ++round) expected += (round % 9) * (round % 9 - 1) / 2;
  EXPECT_EQ(total, expected);
}

// Loops with pauses of up to twice the spin time between them: workers park, and must wake again.
TEST(ThreadPool, WakesParkedWorkers) {
  const auto pool = make_thread_pool(3);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    check_loop(*pool, 1 + random() % 6);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 120));
  }
}

TEST(ThreadPool, NestedLoops) {
  const auto pool = make_thread_pool(4);
  std::atomic<int> calls{0};
  pool->parallel_for(20, [&](std::int64_t, int) {
    pool->parallel_for(30, [&](std::int64_t, int worker) {
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, 4);
      ++calls;
    });
  });
  EXPECT_EQ(calls, 600);
}

TEST(ThreadPool, LoopsFromSeveralThreads) {
  const auto pool = make_thread_pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&pool, caller] {
      for (int round = 0; round < 300; ++round) check_loop(*pool, (round * 7 + caller) % 40);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, RethrowsAndSkipsTheRest) {
  const auto pool = make_thread_pool(3);
  for (int round = 0; round < 200; ++round) {
    std::atomic<std::int64_t> started{0};
    try {
      pool->parallel_for(100'000, [&](std::int64_t index, int) {
        ++started;
        if (index == round) throw std::runtime_error("index " + std::to_string(index));
        // Long enough that all the rest would take seconds, should it not be skipped.
        if (index > round) std::this_thread::sleep_for(std::chrono::microseconds(10));
      });
      FAIL() << "nothing thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "index " + std::to_string(round));
    }
    EXPECT_LT(started, 100'000);
  }
  check_loop(*pool, 100);  // still usable
}

TEST(ThreadPool, EveryBodyThrows) {
  const auto pool = make_thread_pool(4);
  for (int round = 0; round < 200; ++round) {
    EXPECT_THROW(pool->parallel_for(8, [](std::int64_t index,
                                          int) { throw std::out_of_range(std::to_string(index)); }),
                 std::out_of_range);
  }
}

TEST(ThreadPool, MadeAndDestroyedWhileWorkersWake) {
  for (int round = 0; round < 200; ++round) {
    const auto pool = make_thread_pool(4);
    if (round % 2 == 0) check_loop(*pool, round % 7);
  }
}

TEST(ThreadPool, DefaultsToTheCpusOfThisProcess) {
  EXPECT_GE(cpu::available_cpus(), 1);
  EXPECT_EQ(make_thread_pool(0)->concurrency(), cpu::available_cpus());
}

std::size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST(ThreadPool, SharedExecutorsHaveTheirWorkersInCommon) {
  meet(*shared_executor(7));
  const std::size_t threads = threads_of_this_process();
  for (const int workers : {2, 3, 4, 5, 6}) {
    EXPECT_EQ(shared_executor(workers)->concurrency(), workers);
    meet(*shared_executor(workers));
  }
  EXPECT_EQ(threads_of_this_process(), threads);
}

// The child has the pools of its parent without their threads, and starts others. All threads have
// started when it is made: a thread that starts may hold a lock of AddressSanitizer, which nobody
// would release in the child, and its search for leaks takes that lock.
TEST(ThreadPool, IsOfUseInAChildOfFork) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not let a child of fork() start threads";
#endif
  auto pool = make_thread_pool(4);
  meet(*pool);
  meet(*default_executor());
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    check_loop(*pool, 100);
    meet(*pool);
    meet(*shared_executor(3));
    pool.reset();
    std::exit(HasFailure() ? 1 : 0);  // destroys the default executor
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ThreadPool, RefusesImpossibleCounts) {
  for (const int threads : {-1, 1'000'000}) {
    try {
      make_thread_pool(threads);
      FAIL() << threads;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("threads is " + std::to_string(threads)),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace attn
