// The emulated machine: deadlocks end a launch, also where threads poll instead of waiting.
#include "machine.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace attn::emulator {
namespace {

constexpr unsigned kThreads = 64;

// Of the kernels below, which get one argument: a word for each block of threads.
unsigned* words_of(void** arguments) { return *static_cast<unsigned**>(arguments[0]); }

// Two blocks of threads beside each other, each of a warp that polls and one that does not.
bool run(void (*kernel)(void**), std::vector<unsigned> words = {0, 0}) {
  std::vector<char> shared(1024);
  unsigned* first = words.data();
  void* arguments[] = {&first};
  return launch({.grid = 2,
                 .size = kThreads,
                 .cluster = 1,
                 .at_once = 2,
                 .shared = shared.data(),
                 .shared_bytes = shared.size(),
                 .call = kernel,
                 .arguments = arguments},
                1);
}

// For a whole warp, which goes by the answer of its first lane. Between two questions others run.
template <class Ask>
void poll(Ask ask) {
  bool answer = false;
  do answer = polled(ask());
  while (exchange(&answer, sizeof(answer))[0] == 0);
}

void take_turn(unsigned* words, unsigned before) {
  if (thread_index().x / 32 == 0) poll([&] { return words[before] != 0; });
  barrier(0, kThreads, true);
  if (thread_index().x == 0) words[block_index().x] = 1;
}
void take_turns(void** arguments) {
  unsigned* const words = words_of(arguments);
  if (block_index().x == 0) {
    words[0] = 1;
  } else {
    take_turn(words, 0);
  }
}
void wait_for_each_other(void** arguments) { take_turn(words_of(arguments), 1 - block_index().x); }
// A barrier that gets one arrival of as many as its word says.
void poll_a_barrier(void** arguments) {
  if (thread_index().x == 0) mbarrier_init(0, words_of(arguments)[block_index().x]);
  barrier(0, kThreads, true);
  if (thread_index().x == 32) mbarrier_arrive(0, 0);
  if (thread_index().x / 32 == 0) poll([] { return mbarrier_done(0, 0); });
}

TEST(EmulatedMachine, TurnsThatComeAreNoDeadlock) { EXPECT_TRUE(run(take_turns)); }
TEST(EmulatedMachine, TurnsThatNeverComeAreADeadlock) { EXPECT_FALSE(run(wait_for_each_other)); }
TEST(EmulatedMachine, ABarrierThatIsPolled) {
  EXPECT_TRUE(run(poll_a_barrier, {1, 1}));
  EXPECT_FALSE(run(poll_a_barrier, {1, 2}));
}

}  // namespace
}  // namespace attn::emulator
