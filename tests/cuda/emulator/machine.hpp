// A cluster of blocks of threads on the CPU: threads are fibers, instructions that threads wait in
// are functions. Kernels call these through the headers of device/ptx, which take the place of
// src/cuda/device/ptx.
//
// Asynchronous work happens as late as it may: products when they are waited for, copies by
// cp.async likewise, boxes of the copy engine some time after all threads have come to wait. So
// what is overwritten or read too early shows as a wrong result, and what is never given back, or a
// turn that never comes, as a deadlock, which ends the launch.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace attn::emulator {

struct Index {
  unsigned x;
};

// Of the running thread.
const Index& thread_index();
const Index& block_index();
const Index& block_size();
const Index& grid_size();

char* shared_memory();  // of the block
// Where kernels know shared memory by name; addresses count from here. That of the first block of
// a cluster.
char* shared_window();

// Clusters: blocks that run at once and reach each other's shared memory by addresses whose upper
// bits say which block (mapa).
unsigned cluster_rank();
unsigned cluster_address(unsigned address, unsigned rank);
void cluster_arrive();
void cluster_wait();
void store_cluster(unsigned address, const void* from, std::size_t bytes);
// By the copy engine, from this block's shared memory; they arrive on a barrier of that block.
void send_bytes(unsigned address, unsigned from, unsigned bytes, unsigned barrier);

// What all 32 lanes of the warp bring, in order of lane, until the call after the next. Of at most
// 32 bytes, in steps of 32. All lanes must call.
const char* exchange(const void* mine, std::size_t bytes);
constexpr std::size_t kExchange = 32;

// bar.sync and bar.arrive.
void barrier(unsigned id, unsigned threads, bool wait);
// bar.red.or.
bool barrier_or(unsigned id, unsigned threads, bool x);

void mbarrier_init(unsigned address, unsigned arrivals);
void mbarrier_arrive(unsigned address, unsigned expected_bytes);
bool mbarrier_done(unsigned address, unsigned parity);
void mbarrier_wait(unsigned address, unsigned parity);

// Of a thread that asks again and again instead of waiting, what it was answered: where all that is
// left are such threads, and nothing changes any more, that is a deadlock too.
bool polled(bool answer);

// Until a word of memory is not 0.
void wait_for_word(const unsigned* word);

// As cuTensorMapEncodeTiled was told; what a CUtensorMap holds.
struct Box {
  char* base;
  std::uint64_t strides[4];  // bytes, of the dimensions after the first
  std::uint32_t dims[5], box[5];
  std::uint32_t rank;
  std::uint32_t element_bytes;  // 1 or 2
};
// ranks: a bit for each block of the cluster that gets the box and the bytes on its barrier, at the
// same addresses.
void copy_box(const Box& box, unsigned destination, unsigned barrier, const int* coordinates,
              unsigned ranks);
// The way back: reads shared memory when this thread, which has committed it, waits for it.
void store_box(const Box& box, unsigned source, const int* coordinates);
// Bytes that arrive on an mbarrier.
void copy_bytes(unsigned destination, const void* source, unsigned bytes, unsigned barrier);
// Floats added to memory: read as those of store_box, and added when a thread of the block releases
// what was waited for, or when the block's cluster has ended.
void add_floats(float* to, unsigned source, unsigned bytes);
// Bytes written to memory, when floats would be added.
void store_bytes(void* to, unsigned source, unsigned bytes);
void release_memory();
void commit_stores();
// All groups that were committed but the last `pending`.
void finish_stores(std::size_t pending);

// cp.async.
void copy_later(unsigned destination, const void* source, bool exists, unsigned bytes = 16);
void commit_copies();
void wait_copies(unsigned groups);

// 8-bit floats, by the names of PTX.
enum class Float8 { none, e4m3, e5m2 };

// wgmma. d: accumulators of this thread, columns / 2 of them. a: four registers, or null and a
// descriptor. Operands of which `transposed_a` or `transposed_b` says so have rows along k; B
// always where A is in registers, but of 8-bit floats.
struct Product {
  float* d;
  const unsigned* a;
  unsigned descriptor_a, descriptor_b;
  int columns;
  bool add, half, transposed_a = false, transposed_b = false;
  // Of A and of B, which then has rows along k: 32 steps.
  Float8 float8 = Float8::none, float8_b = Float8::none;
  float* sums = nullptr;  // the last four accumulators, where they are apart
};
void product(const Product& product);
void commit_products();
void wait_products(unsigned groups);

// sum + a[0] b[0] + ... of 16 products, as tensor cores add them.
float add_products(float sum, const float* a, const float* b);
extern const float* const kHalves;  // by their bits
inline float widen(std::uint16_t bits, bool half) {
  return half ? kHalves[bits] : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// A kernel: call(arguments) in every one of grid blocks of `size` threads, `cluster` of which run
// at a time.
// at_once: clusters that run beside each other; with more than one the kernel must reach shared
// memory by addresses.
struct Launch {
  unsigned grid, size, cluster, at_once;
  char* shared;
  std::size_t shared_bytes;
  void (*call)(void**);
  void** arguments;
};
// False, and a sentence on stderr, on a deadlock. `seed` chooses among the orders in which warps
// may run.
bool launch(const Launch& launch, unsigned seed);

}  // namespace attn::emulator
