// How many threads work for calls that have no executor of their own.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "cpu/available_cpus.hpp"
#include "plan_cache.hpp"

namespace attn {
namespace {

// Those of this process. The system may need a moment to forget a thread that has ended; none ends
// here.
std::ptrdiff_t running_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Whether all workers of the default executor run at once: each body waits for all others.
bool all_meet() {
  const auto pool = default_executor();
  const int workers = pool->concurrency();
  std::atomic<int> arrived{0};
  pool->parallel_for(workers, [&](std::int64_t, int) {
    ++arrived;
    while (arrived < workers) std::this_thread::yield();
  });
  return workers == get_num_threads() && arrived == workers;
}

// O and the gradients of a problem that has work for four threads.
std::vector<float> results() {
  const Problem problem = parse_problem("b1_n512_h4_d64_causal");
  const auto size = std::size_t{512} * 4 * 64;
  std::mt19937 random(5);
  std::uniform_real_distribution<float> number(-1, 1);
  std::vector<float> q(size), k(size), v(size), lse(4 * 512), all(4 * size);
  for (std::vector<float>* x : {&q, &k, &v}) {
    for (float& value : *x) value = number(random);
  }
  const auto view = [](float* x) { return tensor(x, {1, 512, 4, 64}); };
  const Inputs inputs{.q = view(q.data()), .k = view(k.data()), .v = view(v.data())};
  const Outputs outputs{.o = view(all.data()), .lse = tensor(lse.data(), {1, 4, 512})};
  forward(problem, inputs, outputs);
  backward(problem, inputs, outputs, view(v.data()),
           {.dq = view(&all[size]), .dk = view(&all[2 * size]), .dv = view(&all[3 * size])});
  return all;
}

int planned() { return make_plan(parse_problem("b1_n512_h4_d64_causal"), Phase::forward).threads; }

struct NumThreads : testing::Test {
  ~NumThreads() override { set_num_threads(0); }
};

TEST_F(NumThreads, WorkForACallAndNoMore) {
  std::vector<float> one;
  for (const int threads : {1, 3, 2, 4, 1}) {
    set_num_threads(threads);
    EXPECT_EQ(get_num_threads(), threads);
    EXPECT_EQ(planned(), threads);
    const std::vector<float> found = results();
    if (one.empty()) one = found;
    EXPECT_TRUE(found == one) << threads;  // the same bits
    EXPECT_TRUE(all_meet());
    EXPECT_EQ(default_executor(), shared_executor(threads));
  }
}

// In processes of their own, which have no pool yet.
struct NumThreadsDeathTest : NumThreads {
  NumThreadsDeathTest() { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(NumThreadsDeathTest, OneStartsNoThread) {
  EXPECT_EXIT(
      {
        const std::ptrdiff_t before = running_threads();
        set_num_threads(1);
        results();
        const std::ptrdiff_t of_one = running_threads() - before;
        set_num_threads(4);
        results();
        const std::ptrdiff_t of_four = running_threads() - before;
        std::_Exit(static_cast<int>(10 * of_one + of_four));
      },
      testing::ExitedWithCode(3), "");
}

// The number that a process has with these variables; 200 where it is refused with `refusal`.
int number_with(const char* ours, const char* openmp, const std::string& refusal = "") {
  for (const auto& [name, value] :
       {std::pair{"ATTN_NUM_THREADS", ours}, {"OMP_NUM_THREADS", openmp}}) {
    if (value == nullptr) {
      unsetenv(name);
    } else {
      setenv(name, value, 1);
    }
  }
  try {
    return get_num_threads();
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_argument && error.what() == refusal ? 200 : 201;
  }
}

TEST_F(NumThreadsDeathTest, FollowTheEnvironment) {
  const auto exits = [](const char* ours, const char* openmp, int number,
                        const char* refusal = "") {
    EXPECT_EXIT(std::_Exit(number_with(ours, openmp, refusal)), testing::ExitedWithCode(number),
                "");
  };
  exits("3", "5", 3);
  exits(nullptr, "5", 5);
  exits("", "5,2", 5);
  exits(nullptr, " 5 , 2", 5);
  exits(" 3 ", nullptr, 3);
  exits(nullptr, nullptr, cpu::available_cpus());
  exits(nullptr, "many", cpu::available_cpus());
  exits(nullptr, "0", cpu::available_cpus());
  exits("3.5", nullptr, 200, "ATTN_NUM_THREADS is 3.5; accepted are 1 to 4096");
  exits("0", nullptr, 200, "ATTN_NUM_THREADS is 0; accepted are 1 to 4096");
}

TEST_F(NumThreadsDeathTest, ASettingComesBeforeTheEnvironment) {
  EXPECT_EXIT(
      {
        setenv("ATTN_NUM_THREADS", "3", 1);
        set_num_threads(2);
        const int set = get_num_threads();
        set_num_threads(0);
        std::_Exit(10 * set + get_num_threads());
      },
      testing::ExitedWithCode(23), "");
}

TEST_F(NumThreads, RefuseWhatNoPoolHas) {
  for (const int threads : {-1, 4097}) {
    EXPECT_THROW(set_num_threads(threads), Error);
    EXPECT_THROW(shared_executor(threads), Error);
  }
  EXPECT_THROW(shared_executor(0), Error);
}

TEST_F(NumThreads, PoolsMadeAtTheSameTimeAreOne) {
  std::vector<std::shared_ptr<Executor>> pools(8);
  std::vector<std::thread> makers;
  for (auto& pool : pools) {
    makers.emplace_back([&pool] { pool = shared_executor(5); });
  }
  for (std::thread& maker : makers) maker.join();
  for (const auto& pool : pools) EXPECT_EQ(pool, pools.front());
}

// The number is read once in a call: a plan is kept for as many workers as it was made for,
// whatever another thread sets meanwhile.
TEST_F(NumThreads, APlanIsKeptForTheWorkersThatItWasMadeFor) {
  std::atomic<bool> stop{false}, started{false};
  std::thread setter([&] {
    for (int i = 0; !stop; ++i) {
      set_num_threads(1 + i % 2);
      started = true;
    }
  });
  while (!started) std::this_thread::yield();
  std::vector<float> q(8 * 4), o(q.size());
  const auto view = [](std::vector<float>& x) { return tensor(x.data(), {1, 8, 1, 4}); };
  const Inputs inputs{.q = view(q), .k = view(q), .v = view(q)};
  const PlanOptions options{.threads = 2};  // where there are as many
  int wrong = 0;
  for (int i = 0; i < 3000; ++i) {
    Problem problem;
    problem.softmax_scale = 3 + i;  // a plan of its own
    forward(problem, inputs, {.o = view(o)}, options);
    const Problem whole = complete(problem, inputs);
    for (const int workers : {1, 2}) {
      const auto kept = plan_cache().find(
          {whole, Phase::forward, options, InstructionSet::automatic, workers},
          [&](const Problem& p) {
            return make_plan(p, Phase::forward, options, {.executor = shared_executor(workers)});
          });
      wrong += kept->threads != workers;
    }
  }
  stop = true;
  setter.join();
  EXPECT_EQ(wrong, 0);
}

// A child has its parent's pools without their threads, and may make others: none of the tests
// above has one of seven.
TEST_F(NumThreads, AChildOfForkMayChooseAnother) {
  set_num_threads(2);
  EXPECT_TRUE(all_meet());
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    alarm(300);  // ends a child that waits for ever
    results();
    set_num_threads(7);
    std::_Exit(all_meet() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace attn
