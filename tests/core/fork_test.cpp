// A child of fork() may call the library whatever other threads of its parent were doing: no lock
// is held in it by a thread that it does not have.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "attn/attn.hpp"
#include "core/first_made.hpp"

namespace attn {
namespace {

// A call that has a plan of its own for each scale.
float attend(double scale) {
  std::array<float, 4> q{1, 2, 3, 4}, o{};
  const auto view = [](auto& x) { return tensor(x.data(), {1, 1, 1, 4}); };
  Problem problem;
  problem.softmax_scale = scale;
  forward(problem, {.q = view(q), .k = view(q), .v = view(q)}, {.o = view(o)});
  return o[3];
}

TEST(Fork, ChildrenFindNoLockHeld) {
  constexpr int kChildren = 100;
  std::atomic<bool> stop{false};
  std::atomic<int> started{0};
  std::vector<std::thread> planners;
  for (int t = 0; t < 3; ++t) {
    planners.emplace_back([&, t] {
      for (int n = 1; !stop; ++n) {
        attend(t + n * 0x1p-20);
        if (n == 1) ++started;
      }
    });
  }
  while (started < 3) std::this_thread::yield();
  int waiting = 0;
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      alarm(300);  // ends a child that waits for ever
      // One plan that the parent may have, and one that is new.
      _exit(attend(1) == 4 && attend(-1 - i) == 4 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
      ++waiting;
      break;
    }
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    ASSERT_EQ(WEXITSTATUS(status), 0);
  }
  stop = true;
  for (std::thread& planner : planners) planner.join();
  EXPECT_EQ(waiting, 0);
}

// A value that another thread of the parent was making is made again.
TEST(Fork, ChildrenMakeWhatTheirParentWasMaking) {
  static constinit core::FirstMade<int> value;
  std::atomic<bool> making{false}, forked{false};
  std::thread maker([&] {
    value.get([&] {
      making = true;
      while (!forked) std::this_thread::yield();
      return 1;
    });
  });
  while (!making) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(300);
    _exit(value.get([] { return 2; }));
  }
  forked = true;
  maker.join();
  ASSERT_NE(child, -1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_EQ(value.get([] { return 3; }), 1);
}

}  // namespace
}  // namespace attn
