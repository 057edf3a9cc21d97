// What a block of threads and its threads are while they run; of the files of this machine alone.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "machine.hpp"

namespace attn::emulator {

struct Copy {
  unsigned destination;
  const void* source;
  bool exists;
  unsigned bytes;
};

// What a thread runs on. One that has ended leaves it to a later thread, which goes on in begin().
struct Stack {
  std::unique_ptr<char[]> memory;
  ucontext_t context;  // before it has run
  jmp_buf place;       // after that, where it waits
  bool started = false;
};

struct Fiber {
  std::unique_ptr<Stack> stack;
  Index index{};
  bool finished = false;
  unsigned cluster_generation = 0;                            // of its last arrival
  std::function<bool()> ready;                                // empty: may run
  std::vector<std::vector<Copy>> copies{1};                   // groups, the last one open
  std::vector<std::vector<Product>> products{1};              // likewise
  std::vector<std::vector<std::function<void()>>> stores{1};  // likewise: of boxes and floats
};

struct Warp {
  char values[2][32 * kExchange];
  unsigned arrived = 0, generation = 0;
};
struct Barrier {
  unsigned arrived = 0, generation = 0;
  bool any[2] = {};  // of barrier_or, in this generation and the one before
};
struct MBarrier {
  unsigned arrivals = 0, pending = 0, phase = 0;
  std::int64_t bytes = 0;  // that are still to come
  void check() {
    if (pending != 0 || bytes != 0) return;
    ++phase;
    pending = arrivals;
  }
};

struct Block;
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  Barrier barrier;
  const Launch* launch = nullptr;
};

struct Block {
  Cluster* cluster = nullptr;
  unsigned rank = 0;  // in the cluster
  Index index{}, size{}, grid{};
  std::vector<char> own_shared;  // of the blocks after the first
  char* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Barrier> groups;  // of 128 threads, for products
  std::unordered_map<unsigned, Barrier> barriers;
  std::unordered_map<unsigned, MBarrier> mbarriers;
  std::deque<std::function<void()>> later;        // boxes under way
  std::vector<std::function<void()>> unreleased;  // floats that other blocks may see later
  Fiber* now = nullptr;
  jmp_buf scheduler;
};

extern Block* block;  // the one that runs
inline Fiber& now() { return *block->now; }

// Lets others run until then.
void wait_until(std::function<bool()> ready);
// Of all threads in a group of `count`, which have the same barrier.
void meet(Barrier& b, unsigned count);
// Ends the process: the kernel did what a GPU forbids.
[[noreturn]] void fail(const char* what);
inline void check_address(unsigned address, std::size_t bytes) {
  if (address + bytes > block->shared_bytes) fail("shared memory is left");
}

}  // namespace attn::emulator
