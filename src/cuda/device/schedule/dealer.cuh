// Deals tiles to the blocks of threads of a launch.
#pragma once

#include "device.cuh"
#include "params.cuh"
#include "ptx/special.cuh"

namespace attn::device {

// The next tile, and how many blocks of threads are done: both 0 between launches.
struct WorkCounter {
  unsigned next, done;
};
// The counter of a launch that was captured in a graph. Every executable graph has a number of its
// own for it, which stays from launch to launch, so a counter once taken is kept. Two executables
// of one captured graph may run at once: they have two counters.
struct GridCounter {
  unsigned long long grid;  // its number + 1; 0: free
  WorkCounter counter;
};
struct alignas(128) StreamCounter {
  WorkCounter counter;
};
// Zero when the kernel is loaded, in each context anew.
__device__ StreamCounter stream_counters[kStreamCounters];
constexpr unsigned kGridCounters = 1024, kGridProbes = 32;
__device__ GridCounter grid_counters[kGridCounters];

// Null where others hold all that it might take: no block of threads of the grid gets one then.
ATTN_DEVICE WorkCounter* counter_of_grid() {
  const unsigned long long grid = grid_id() + 1;
#pragma unroll 1
  for (unsigned i = 0; i < kGridProbes; ++i) {
    GridCounter& c = grid_counters[(grid + i) % kGridCounters];
    const unsigned long long owner = atomicCAS(&c.grid, 0ull, grid);
    if (owner == 0 || owner == grid) return &c.counter;
  }
  return nullptr;
}

// The first tile by number, others to whoever asks first, so that tiles of any cost share the
// machine evenly; without a counter in turn. Ask late: a tile once taken waits for its taker. For
// one thread, of the `cluster` blocks of threads that share each tile.
class TileDealer {
 public:
  // counter: ForwardParams::counter or BackwardParams::counter.
  ATTN_DEVICE explicit TileDealer(int counter, unsigned cluster = 1)
      : cluster_(cluster), of_grid_(counter == kGridCounter) {
    if (counter >= 0) counter_ = &stream_counters[counter].counter;
  }
  ATTN_DEVICE int next() {
    if (tile_ < 0) return tile_ = static_cast<int>(blockIdx.x / cluster_);
    if (of_grid_) {  // nobody waits for the second tile yet: time to find the counter
      of_grid_ = false;
      counter_ = counter_of_grid();
    }
    const int drawn =
        counter_ != nullptr ? static_cast<int>(atomicAdd(&counter_->next, 1u)) : tile_;
    return tile_ = static_cast<int>(gridDim.x / cluster_) + drawn;
  }
  // After the last tile. The last block of threads leaves the counter as it was. One that found no
  // tile at all counts too, as where sequences are shorter than a launch is made for.
  ATTN_DEVICE void finish() {
    if (of_grid_) {
      of_grid_ = false;
      counter_ = counter_of_grid();
    }
    if (counter_ == nullptr) return;
    __threadfence();
    if (atomicAdd(&counter_->done, 1u) == gridDim.x / cluster_ - 1) {
      counter_->next = 0;
      counter_->done = 0;
    }
  }

 private:
  WorkCounter* counter_ = nullptr;
  unsigned cluster_;
  bool of_grid_;  // and not looked for yet
  int tile_ = -1;
};

// Every tile to whoever asks first. So a block of threads that has a tile runs, and so did those
// that have the tiles before it: it may wait for them.
class RunningDealer {
 public:
  // drawn: 0 when the launch begins.
  ATTN_DEVICE explicit RunningDealer(unsigned* drawn) : drawn_(drawn) {}
  ATTN_DEVICE int next() { return static_cast<int>(atomicAdd(drawn_, 1u)); }
  ATTN_DEVICE void finish() {}

 private:
  unsigned* drawn_;
};

}  // namespace attn::device
