// What the pieces of a Hopper backward kernel cost by themselves, in clocks of a multiprocessor
// with all 132 at work: adding 32 KB of float32 dQ to memory, products of several warpgroups at
// once, copies to the neighbour of a cluster.
//
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I../../../src/cuda/device -Idevice
//   -I. micro.cu -o micro
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "products.cuh"
#include "ptx.cuh"
#include "ptx/mma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "tile/matrix_descriptor.cuh"

using namespace attn::device;

namespace {

constexpr int kBlocks = 132, kRounds = 400, kTileBytes = 32768;

enum class Add { red, bulk };
// Who adds to what: every multiprocessor to blocks of its own; in step over the same 64 blocks of a
// head for 32 multiprocessors, each beginning 0 or 1 block after its neighbour.
enum class Where { own, together, skewed };

// Four warps add 32 KB a round; one thread of a fifth asks for `load` bytes a round by the copy
// engine.
template <Add kAdd>
__global__ void __launch_bounds__(160, 1) add_floats(float* sums, const char* source, Where where,
                                                     int load, bool add, long long* clocks) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ unsigned long long barriers[2];
  const unsigned shared = shared_address(memory), barrier = shared_address(barriers);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init(barrier + 8, 1);
    mbarrier_init_fence();
  }
  __syncthreads();
  const int sm = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x / 32),
            lane = static_cast<int>(threadIdx.x % 32);
  const long long begin = clock64();
  if (warp < 4 && add) {
    for (int i = 0; i < kRounds; ++i) {
      const int block = where == Where::own        ? sm * 8 + i % 8
                        : where == Where::together ? sm / 32 * 64 + i % 64
                                                   : sm / 32 * 64 + (i + sm % 32) % 64;
      float* const to = sums + (block * 4LL + warp) * 2048;
      if constexpr (kAdd == Add::red) {
#pragma unroll
        for (int j = 0; j < 16; ++j) red_add(to + j * 128 + lane * 4, 1.f, 2.f, 3.f, 4.f);
      } else {
        const unsigned staged = shared + static_cast<unsigned>(warp * 8192);
        if (lane == 0) bulk_wait_read();
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 16; ++j)
          store_shared(staged + static_cast<unsigned>(j * 512 + lane * 16), {1, 2, 3, 4});
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
          bulk_red_add(to, staged, 8192);
          bulk_commit();
        }
      }
    }
    if (kAdd == Add::bulk && lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    if (kAdd == Add::red) __threadfence();
  } else if (threadIdx.x == 128 && load > 0) {
    for (int i = 0; i < kRounds + 1; ++i) {
      if (i < kRounds) {
        mbarrier_arrive_expect(barrier + 8 * (i & 1), static_cast<unsigned>(load));
        for (int at = 0; at < load; at += 8192) {
          bulk_load(shared + 32768 + static_cast<unsigned>((i & 1) * load + at),
                    source + ((sm * 7 + i) % 256) * 32768LL + at, 8192, barrier + 8 * (i & 1));
        }
      }
      if (i > 0) mbarrier_wait(barrier + 8 * ((i - 1) & 1), (i - 1) / 2 & 1);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) clocks[sm] = clock64() - begin;
}

enum class Kind { ss, ss_transposed, ss64, rs };
// Sixteen k steps: as many flops as S of 64 x 128 at head size 256, or (64 columns) half of them.
template <Kind kKind, int kColumns>
__device__ __forceinline__ void sixteen(float (&d)[kColumns / 2], unsigned a, unsigned b,
                                        const unsigned (&r)[4]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if constexpr (kKind == Kind::rs) {
      ProductRS<kColumns, 1>::run(d, r, b + k * 128, 1);
    } else if constexpr (kKind == Kind::ss_transposed) {
      ProductSS<kColumns, 1, 1>::run(d, a + k % 4 * 128, b + k % 4 * 128, 1);
    } else {
      ProductSS<kColumns, 0, 0>::run(d, a + k % 4 * 2, b + k % 4 * 2, 1);
    }
  }
}
template <Kind kKind, int kColumns>
__device__ __forceinline__ float multiply_rounds(unsigned shared, int rounds) {
  float d[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) d[i] = 0;
  const unsigned r[4] = {threadIdx.x, threadIdx.x + 1, threadIdx.x + 2, 3};
  const unsigned a = uniform_descriptor(shared, 8192), b = uniform_descriptor(shared + 65536, 8192);
  for (int i = 0; i < rounds; ++i) {
    pin(d);
    wgmma_fence();
    sixteen<kKind, kColumns>(d, a, b, r);
    wgmma_commit();
    wgmma_wait<0>();
    pin(d);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sum += d[i];
  return sum;
}

// Warpgroups 0 to kGroups - 1 issue products in rounds of eight; one more writes matrices where
// `stores`. The first is of kFirst, the others of kOthers.
template <Kind kFirst, Kind kOthers, int kColumns>
__global__ void __launch_bounds__(512, 1)
    multiply_groups(int groups, bool stores, float* out, long long* clocks) {
  extern __shared__ __align__(1024) char memory[];
  const unsigned shared = shared_address(memory);
  for (unsigned i = threadIdx.x; i < 40960; i += blockDim.x) {  // bf16 between 1 and 2
    reinterpret_cast<unsigned*>(memory)[i] = 0x3f803f80u | ((i * 2654435761u >> 7) & 0x007f007fu);
  }
  fence_proxy_async();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x / 128));
  const long long begin = clock64();
  float sum = 0;
  if (group < groups) {
    if (group == 0) {
      sum = multiply_rounds<kFirst, kColumns>(shared, kRounds);
    } else {
      sum = multiply_rounds<kOthers, kColumns>(shared, kRounds);
    }
  } else if (group == 3 && stores) {
    const unsigned words[4] = {threadIdx.x, 1, 2, 3};
    const unsigned lane = threadIdx.x % 32;
    const unsigned at = shared + 131072 + threadIdx.x % 128 / 32 * 4096 + lane % 16 * 128 +
                        ((lane / 16 ^ (lane & 7)) << 4);
    // As many bytes a round as P and dS of 64 x 128: 32 KB for each 2560 clocks of products.
    for (int i = 0; i < kRounds; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) store_matrices(at ^ static_cast<unsigned>(k * 32), words);
    }
  }
  if (threadIdx.x % 128 == 0) clocks[blockIdx.x * 4 + group] = clock64() - begin;
  if (sum == 12345.f) out[threadIdx.x] = sum;
}

// Each of a pair of blocks copies `bytes` a round to the other.
__global__ void __launch_bounds__(128, 1) __cluster_dims__(2, 1, 1)
    copy_to_neighbour(int bytes, long long* clocks) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ unsigned long long barriers[2];
  const unsigned shared = shared_address(memory), barrier = shared_address(barriers);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init(barrier + 8, 1);
    mbarrier_init_fence();
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  const long long begin = clock64();
  if (threadIdx.x == 0) {
    unsigned rank, to, ready;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(to)
                 : "r"(shared + 65536), "r"(rank ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(ready)
                 : "r"(barrier), "r"(rank ^ 1));
    for (int i = 0; i < kRounds; ++i) {
      const unsigned which = 8 * (i & 1);
      mbarrier_arrive_expect(barrier + which, static_cast<unsigned>(bytes));
      for (int at = 0; at < bytes; at += 8192) {
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], "
            "%2, [%3];" ::"r"(to + at),
            "r"(shared + at), "r"(8192), "r"(ready + which)
            : "memory");
      }
      if (i > 0) mbarrier_wait(barrier + (8 - which), (i - 1) / 2 & 1);
    }
    mbarrier_wait(barrier + 8 * ((kRounds - 1) & 1), (kRounds - 1) / 2 & 1);
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) clocks[blockIdx.x] = clock64() - begin;
}

void check(cudaError_t e) {
  if (e == cudaSuccess) return;
  std::printf("FAILED: %s\n", cudaGetErrorString(e));
  std::exit(1);
}
constexpr int kShared = 200 * 1024;
long long* clocks;
float* sums;
char* source;

std::vector<long long> finish(int count) {
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
  std::vector<long long> c(static_cast<std::size_t>(count));
  check(cudaMemcpy(c.data(), clocks, sizeof(long long) * c.size(), cudaMemcpyDeviceToHost));
  return c;
}

template <Add kAdd>
void report_add(const char* name, Where where, const char* place, int load, bool add) {
  check(
      cudaFuncSetAttribute(add_floats<kAdd>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  long long worst = 0;
  for (int i = 0; i < 3; ++i) {
    add_floats<kAdd><<<kBlocks, 160, kShared>>>(sums, source, where, load, add, clocks);
    const auto c = finish(kBlocks);
    worst = *std::max_element(c.begin(), c.end());
  }
  const double clk = static_cast<double>(worst) / kRounds;
  std::printf(
      "%-5s %-9s %5.0f clk a round; added %5.1f B/clk, loaded %5.1f B/clk, of each "
      "multiprocessor\n",
      add ? name : "-", place, clk, add ? kTileBytes / clk : 0., load / clk);
}

template <Kind kFirst, Kind kOthers, int kColumns>
void report_products(const char* name, int groups, bool stores) {
  auto* const kernel = multiply_groups<kFirst, kOthers, kColumns>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  std::vector<long long> c;
  for (int i = 0; i < 2; ++i) {
    kernel<<<kBlocks, 512, kShared>>>(groups, stores, sums, clocks);
    c = finish(kBlocks * 4);
  }
  long long all = 0;
  for (int g = 0; g < groups; ++g) all = std::max(all, c[static_cast<std::size_t>(g)]);
  const double per = static_cast<double>(all) / kRounds / 8 / groups;
  std::printf(
      "%-28s %d warpgroups%s: %6.1f clk a product (%3.0f %% of the tensor cores); each ends at",
      name, groups, stores ? " + stmatrix" : "", per, 100 * kColumns / 2 / per);
  for (int g = 0; g < 4; ++g) {
    if (g < groups || (g == 3 && stores))
      std::printf(" %lld", c[static_cast<std::size_t>(g)] / kRounds);
  }
  std::printf(" clk a round\n");
}

}  // namespace

int main() {
  check(cudaMalloc(&clocks, 8 * 1024));
  check(cudaMalloc(&sums, 132LL * 8 * kTileBytes));
  check(cudaMalloc(&source, 258 * 32768));
  check(cudaMemset(sums, 0, 132LL * 8 * kTileBytes));
  check(cudaMemset(source, 0, 258 * 32768));
  const struct {
    Where where;
    const char* name;
  } places[] = {{Where::own, "own"}, {Where::together, "together"}, {Where::skewed, "skewed"}};
  for (const int load : {0, 32768, 65536}) {
    if (load > 0) report_add<Add::red>("", Where::own, "", load, false);
    for (const auto& place : places) {
      report_add<Add::red>("red", place.where, place.name, load, true);
      report_add<Add::bulk>("bulk", place.where, place.name, load, true);
    }
  }
  for (const bool stores : {false, true}) {
    for (int groups = 1; groups <= 3; ++groups) {
      report_products<Kind::ss, Kind::ss, 128>("SS n128", groups, stores);
      report_products<Kind::ss_transposed, Kind::ss_transposed, 128>("SS n128 both transposed",
                                                                     groups, stores);
      report_products<Kind::rs, Kind::rs, 128>("RS n128", groups, stores);
      report_products<Kind::ss64, Kind::ss64, 64>("SS n64", groups, stores);
    }
    report_products<Kind::ss, Kind::ss_transposed, 128>("first SS, others transposed", 3, stores);
    report_products<Kind::rs, Kind::ss_transposed, 128>("first RS, others transposed", 3, stores);
  }
  check(cudaFuncSetAttribute(copy_to_neighbour, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kShared));
  for (const int bytes : {8192, 16384, 32768}) {
    copy_to_neighbour<<<kBlocks, 128, kShared>>>(bytes, clocks);
    const auto c = finish(kBlocks);
    const double clk = static_cast<double>(*std::max_element(c.begin(), c.end())) / kRounds;
    std::printf(
        "to the neighbour %5d bytes a round, a round ahead: %5.0f clk, %5.1f B/clk out and in\n",
        bytes, clk, bytes / clk);
  }
}
