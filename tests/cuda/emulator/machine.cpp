#include "machine.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "state.hpp"

namespace attn::emulator {

Block* block = nullptr;

namespace {
// What threads that poll were refused, and what may change the next answer: arrivals, boxes, words
// that are released, threads that end.
std::uint64_t refusals = 0, changes = 0;
}  // namespace

// Threads and the scheduler hand over to each other by _setjmp and _longjmp: swapcontext asks the
// kernel for the mask of signals each time, which took a tenth of the tests.
void wait_until(std::function<bool()> ready) {
  if (ready()) return;
  now().ready = std::move(ready);
  if (_setjmp(now().stack->place) == 0) _longjmp(block->scheduler, 1);
}

void meet(Barrier& b, unsigned count) {
  ++changes;
  const unsigned generation = b.generation;
  if (++b.arrived == count) {
    b.arrived = 0;
    ++b.generation;
    return;
  }
  wait_until([&b, generation] { return b.generation != generation; });
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s (thread %u)\n", what, now().index.x);
  std::abort();
}

namespace {

constexpr std::size_t kStack = std::size_t{256} << 10;

// A thread from its beginning to its end, and the next one on this stack.
void begin() {
  while (true) {
    const Launch& launch = *block->cluster->launch;
    launch.call(launch.arguments);
    if (now().stores.size() > 1 || !now().stores.front().empty())
      fail("a thread ends before its boxes were read");
    now().finished = true;
    ++changes;
    if (_setjmp(now().stack->place) == 0) _longjmp(block->scheduler, 1);
  }
}

// The block whose shared memory an address is in, and the address there.
constexpr unsigned kRankShift = 24;
Block& owner(unsigned& address) {
  const unsigned rank = address >> kRankShift;
  address &= (1u << kRankShift) - 1;
  if (rank == 0) return *block;
  Block& b = *block->cluster->blocks[rank - 1];
  if (std::ranges::all_of(b.fibers, &Fiber::finished)) fail("a block is reached after its end");
  return b;
}
MBarrier& mbarrier(unsigned address) {
  Block& b = owner(address);
  const auto found = b.mbarriers.find(address);
  if (found == b.mbarriers.end()) fail("an mbarrier was not initialised");
  return found->second;
}

// Calls f(place in shared memory, element) for all elements of a box, null for those outside of the
// tensor. Returns the bytes of the box.
template <class F>
unsigned for_each_element(const Box& box, unsigned shared, const std::vector<int>& at, F f) {
  const std::uint32_t size = box.element_bytes;
  std::uint32_t rows = 1;
  for (std::uint32_t d = 1; d < box.rank; ++d) rows *= box.box[d];
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::uint32_t rest = row;
    char* elements = box.base;
    bool inside = true;
    for (std::uint32_t d = 1; d < box.rank; ++d) {
      const std::int64_t c = at[d] + static_cast<std::int64_t>(rest % box.box[d]);
      rest /= box.box[d];
      inside = inside && c >= 0 && c < box.dims[d];
      elements += c * static_cast<std::int64_t>(box.strides[d - 1]);
    }
    for (std::uint32_t c = 0; c < box.box[0]; ++c) {
      const std::int64_t column = at[0] + static_cast<std::int64_t>(c);
      const unsigned flat = shared + row * box.box[0] * size + c * size;
      const unsigned place = flat ^ ((flat >> 7 & 7) << 4);
      check_address(place, size);
      f(block->shared + place, inside && column < box.dims[0] ? elements + size * column : nullptr);
    }
  }
  return rows * box.box[0] * size;
}

// Stacks of threads that have ended. New ones, which the system clears, took more than the kernels.
std::vector<std::unique_ptr<Stack>>& free_stacks() {
  static std::vector<std::unique_ptr<Stack>> stacks;
  return stacks;
}

std::unique_ptr<Stack> new_stack() {
  auto stack = std::make_unique<Stack>();
  stack->memory = std::make_unique_for_overwrite<char[]>(kStack);
  getcontext(&stack->context);
  stack->context.uc_stack.ss_sp = stack->memory.get();
  stack->context.uc_stack.ss_size = kStack;
  stack->context.uc_link = nullptr;
  makecontext(&stack->context, begin, 0);
  return stack;
}

void start(Block& b) {
  for (unsigned i = 0; i < b.size.x; ++i) {
    b.fibers[i].index = {i};
    auto& free = free_stacks();
    if (free.empty()) free.push_back(new_stack());
    b.fibers[i].stack = std::move(free.back());
    free.pop_back();
  }
}

// The stacks of threads that have all ended.
void give_back(const std::vector<std::unique_ptr<Cluster>>& clusters) {
  for (const auto& cluster : clusters) {
    for (const auto& b : cluster->blocks) {
      for (Fiber& f : b->fibers) free_stacks().push_back(std::move(f.stack));
    }
  }
}

// The blocks from `index` on. first: rank 0 has the shared memory that the kernel knows by name.
std::unique_ptr<Cluster> make_cluster(const Launch& launch, unsigned index, bool first) {
  auto cluster = std::make_unique<Cluster>();
  cluster->launch = &launch;
  for (unsigned rank = 0; rank < launch.cluster; ++rank) {
    const bool own = rank > 0 || !first;
    auto b = std::make_unique<Block>();
    b->cluster = cluster.get();
    b->rank = rank;
    b->index = {index + rank};
    b->size = {launch.size};
    b->grid = {launch.grid};
    b->own_shared.resize(own ? launch.shared_bytes : 0);
    b->shared = own ? b->own_shared.data() : launch.shared;
    b->shared_bytes = launch.shared_bytes;
    std::memset(b->shared, 0xff, launch.shared_bytes);  // NaN
    b->fibers = std::vector<Fiber>(launch.size);
    b->warps.resize((launch.size + 31) / 32);
    b->groups.resize((launch.size + 127) / 128);
    start(*b);
    cluster->blocks.push_back(std::move(b));
  }
  return cluster;
}

// Lets a thread run until it waits or ends, which brings _setjmp here back once more.
void resume(Block& b, Fiber& f) {
  if (_setjmp(b.scheduler) != 0) return;
  if (f.stack->started) _longjmp(f.stack->place, 1);
  f.stack->started = true;
  setcontext(&f.stack->context);
}

// Lets every thread of a warp run until it waits. Whether any did.
bool run_warp(Block& b, unsigned warp) {
  bool ran = false;
  block = &b;
  for (unsigned i = 32 * warp; i < std::min(b.size.x, 32 * warp + 32); ++i) {
    Fiber& f = b.fibers[i];
    if (f.finished || (f.ready && !f.ready())) continue;
    f.ready = nullptr;
    b.now = &f;
    ran = true;
    resume(b, f);
  }
  return ran;
}

// One of the boxes under way arrives.
void deliver(Block& b, std::size_t which) {
  ++changes;
  const std::function<void()> box = std::move(b.later[which]);
  b.later.erase(b.later.begin() + static_cast<std::ptrdiff_t>(which));
  block = &b;
  b.now = b.fibers.data();
  box();
}

void release(Block& b) {
  ++changes;
  for (const auto& add : b.unreleased) add();
  b.unreleased.clear();
}

std::size_t unfinished(const Block& b) {
  return static_cast<std::size_t>(
      std::count_if(b.fibers.begin(), b.fibers.end(), [](const Fiber& f) { return !f.finished; }));
}

// Runs clusters beside each other. False on a deadlock.
bool run(const std::vector<std::unique_ptr<Cluster>>& clusters, std::mt19937& random) {
  struct Place {
    Block* block;
    unsigned warp;
  };
  std::vector<Block*> blocks;
  std::vector<Place> order;
  for (const auto& cluster : clusters) {
    for (const auto& b : cluster->blocks) {
      blocks.push_back(b.get());
      for (unsigned warp = 0; warp < b->warps.size(); ++warp) order.push_back({b.get(), warp});
    }
  }
  const auto waiting = [&] {
    std::size_t count = 0;
    for (const Block* b : blocks) count += unfinished(*b);
    return count;
  };
  // Rounds without a change in which somebody polls. After these, more than any computation takes,
  // none is held any more; after as many again it is a deadlock.
  constexpr unsigned kIdleRounds = 5'000;
  unsigned idle = 0;
  // A cluster that stands still for long, as long as others can go on without it: they overtake it.
  constexpr unsigned kHeldRounds = 512;
  const Cluster* held = nullptr;
  while (waiting() > 0) {
    if (idle > kIdleRounds) {
      held = nullptr;
    } else if (clusters.size() > 1 && random() % kHeldRounds == 0) {
      held = clusters[random() % clusters.size()].get();
    }
    bool ran = false;
    const std::uint64_t refusals_before = refusals, changes_before = changes;
    std::shuffle(order.begin(), order.end(), random);
    for (const Place& place : order) {
      if (place.block->cluster != held) ran = run_warp(*place.block, place.warp) || ran;
    }
    idle = changes != changes_before ? 0 : idle + (refusals != refusals_before ? 1 : 0);
    if (idle > 2 * kIdleRounds) ran = false;
    std::vector<Block*> receivers;
    for (Block* b : blocks) {
      if (b->cluster != held && !b->later.empty()) receivers.push_back(b);
    }
    // Boxes arrive in any order, at the latest when nobody can go on without.
    if (!receivers.empty() && (!ran || random() % 4 == 0)) {
      Block& b = *receivers[random() % receivers.size()];
      deliver(b, random() % b.later.size());
    } else if (!ran && held != nullptr) {
      held = nullptr;
    } else if (!ran && waiting() > 0) {
      std::fprintf(stderr, "emulated GPU: deadlock: %zu of %u threads of block %u%s wait\n",
                   waiting(), blocks.front()->size.x * static_cast<unsigned>(blocks.size()),
                   blocks.front()->index.x, blocks.size() > 1 ? " on" : "");
      return false;
    }
  }
  for (Block* b : blocks) release(*b);
  return true;
}

}  // namespace

const Index& thread_index() { return now().index; }
const Index& block_index() { return block->index; }
const Index& block_size() { return block->size; }
const Index& grid_size() { return block->grid; }
char* shared_memory() { return block->shared; }
char* shared_window() { return block->cluster->launch->shared; }

unsigned cluster_rank() { return block->rank; }
unsigned cluster_address(unsigned address, unsigned rank) {
  if (rank >= block->cluster->blocks.size()) fail("a cluster has no such block");
  return address | (rank + 1) << kRankShift;
}
void cluster_arrive() {
  ++changes;
  Barrier& b = block->cluster->barrier;
  now().cluster_generation = b.generation;
  if (++b.arrived == block->size.x * block->cluster->blocks.size()) {
    b.arrived = 0;
    ++b.generation;
  }
}
void cluster_wait() {
  wait_until([&b = block->cluster->barrier, mine = now().cluster_generation] {
    return b.generation != mine;
  });
}
void store_cluster(unsigned address, const void* from, std::size_t bytes) {
  Block& b = owner(address);
  check_address(address, bytes);
  std::memcpy(b.shared + address, from, bytes);
}

const char* exchange(const void* mine, std::size_t bytes) {
  Warp& warp = block->warps[now().index.x / 32];
  const unsigned generation = warp.generation;
  char* values = warp.values[generation % 2];
  std::memcpy(values + now().index.x % 32 * kExchange, mine, bytes);
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    ++warp.generation;
  } else {
    wait_until([&warp, generation] { return warp.generation != generation; });
  }
  return values;
}

void barrier(unsigned id, unsigned threads, bool wait) {
  ++changes;
  Barrier& b = block->barriers[id];
  if (wait) {
    meet(b, threads);
  } else if (++b.arrived == threads) {
    b.arrived = 0;
    ++b.generation;
  }
}

bool barrier_or(unsigned id, unsigned threads, bool x) {
  Barrier& b = block->barriers[id];
  bool& any = b.any[b.generation % 2];
  any = (b.arrived > 0 && any) || x;
  meet(b, threads);
  return any;
}

void mbarrier_init(unsigned address, unsigned arrivals) {
  block->mbarriers[address] = {.arrivals = arrivals, .pending = arrivals};
}
void mbarrier_arrive(unsigned address, unsigned expected_bytes) {
  MBarrier& b = mbarrier(address);
  ++changes;
  if (b.pending == 0) fail("more arrivals at an mbarrier than its phase has");
  b.bytes += expected_bytes;
  --b.pending;
  b.check();
}
bool mbarrier_done(unsigned address, unsigned parity) {
  return (mbarrier(address).phase & 1) != parity;
}
void mbarrier_wait(unsigned address, unsigned parity) {
  wait_until([address, parity] { return mbarrier_done(address, parity); });
}

bool polled(bool answer) {
  if (!answer) ++refusals;
  return answer;
}
void wait_for_word(const unsigned* word) {
  wait_until([word] { return *word != 0; });
}

void copy_box(const Box& box, unsigned destination, unsigned barrier, const int* coordinates,
              unsigned ranks) {
  std::vector<int> at(coordinates, coordinates + box.rank);
  const auto copy = [box, destination, barrier, at] {
    const unsigned bytes = for_each_element(box, destination, at, [&](char* shared, char* element) {
      if (element == nullptr) {
        std::memset(shared, 0, box.element_bytes);
      } else {
        std::memcpy(shared, element, box.element_bytes);
      }
    });
    MBarrier& b = block->mbarriers.at(barrier);
    b.bytes -= bytes;
    b.check();
  };
  for (const auto& b : block->cluster->blocks) {
    if ((ranks >> b->rank & 1) != 0) b->later.emplace_back(copy);
  }
}
void store_box(const Box& box, unsigned source, const int* coordinates) {
  std::vector<int> at(coordinates, coordinates + box.rank);
  if (std::ranges::any_of(at, [](int c) { return c < 0; }))
    fail("a box is stored before its tensor");
  now().stores.back().emplace_back([box, source, at] {
    for_each_element(box, source, at, [&](char* shared, char* element) {
      if (element != nullptr) std::memcpy(element, shared, box.element_bytes);
    });
  });
}
void copy_bytes(unsigned destination, const void* source, unsigned bytes, unsigned barrier) {
  if (bytes % 16 != 0 || destination % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(source) % 16 != 0)
    fail("bytes are copied that are not aligned to 16");
  check_address(destination, bytes);
  block->later.emplace_back([destination, source, bytes, barrier] {
    std::memcpy(block->shared + destination, source, bytes);
    MBarrier& b = block->mbarriers.at(barrier);
    b.bytes -= bytes;
    b.check();
  });
}
void send_bytes(unsigned address, unsigned from, unsigned bytes, unsigned barrier) {
  if (bytes % 16 != 0 || address % 16 != 0 || from % 16 != 0)
    fail("bytes are sent that are not aligned to 16");
  Block& b = owner(address);
  if (&b != &owner(barrier)) fail("bytes are sent to one block and their arrival to another");
  check_address(address, bytes);
  check_address(from, bytes);
  b.later.emplace_back([from = block, source = from, address, bytes, barrier] {
    std::memcpy(block->shared + address, from->shared + source, bytes);
    MBarrier& at = block->mbarriers.at(barrier);
    at.bytes -= bytes;
    at.check();
  });
}
void add_floats(float* to, unsigned source, unsigned bytes) {
  if (bytes % 16 != 0 || source % 16 != 0 || reinterpret_cast<std::uintptr_t>(to) % 16 != 0)
    fail("floats are added that are not aligned to 16 bytes");
  check_address(source, bytes);
  now().stores.back().emplace_back([to, source, bytes] {
    std::vector<float> x(bytes / 4);
    std::memcpy(x.data(), block->shared + source, bytes);
    block->unreleased.emplace_back(
        [to, x = std::move(x)] { std::transform(x.begin(), x.end(), to, to, std::plus<>()); });
  });
}
void store_bytes(void* to, unsigned source, unsigned bytes) {
  if (bytes % 16 != 0 || source % 16 != 0 || reinterpret_cast<std::uintptr_t>(to) % 16 != 0)
    fail("bytes are stored that are not aligned to 16");
  check_address(source, bytes);
  now().stores.back().emplace_back([to, source, bytes] {
    std::vector<char> x(block->shared + source, block->shared + source + bytes);
    block->unreleased.emplace_back(
        [to, x = std::move(x)] { std::ranges::copy(x, static_cast<char*>(to)); });
  });
}
void release_memory() { release(*block); }
void commit_stores() { now().stores.emplace_back(); }
void finish_stores(std::size_t pending) {
  auto& all = now().stores;
  while (all.size() > pending + 1) {
    for (const auto& store : all.front()) store();
    all.erase(all.begin());
  }
}

void copy_later(unsigned destination, const void* source, bool exists, unsigned bytes) {
  check_address(destination, bytes);
  now().copies.back().push_back({destination, source, exists, bytes});
}
void commit_copies() { now().copies.emplace_back(); }
void wait_copies(unsigned groups) {
  auto& all = now().copies;
  while (all.size() > groups + 1) {
    for (const Copy& c : all.front()) {
      if (c.exists) {
        std::memcpy(block->shared + c.destination, c.source, c.bytes);
      } else {
        std::memset(block->shared + c.destination, 0, c.bytes);
      }
    }
    all.erase(all.begin());
  }
}

bool launch(const Launch& launch, unsigned seed) {
  std::mt19937 random(seed);
  bool done = true;
  for (unsigned index = 0; done && index < launch.grid;) {
    std::vector<std::unique_ptr<Cluster>> clusters;
    while (index < launch.grid && clusters.size() < launch.at_once) {
      clusters.push_back(make_cluster(launch, index, clusters.empty()));
      index += launch.cluster;
    }
    done = run(clusters, random);
    if (done) give_back(clusters);
    block = nullptr;
  }
  return done;
}

}  // namespace attn::emulator
