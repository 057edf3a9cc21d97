// What compute-sanitizer's racecheck knows of barriers in shared memory. A ring of one place: a
// bulk copy fills it, four warps read it and give it back by an arrival of every thread (0), of one
// lane of each warp after __syncwarp() (1), which orders the reads of the other lanes before it, or
// of one lane without that (2).
//
//   nvcc -std=c++17 -arch=sm_90a -o ring bench/gpu/racecheck_ring.cu
//   for mode in 0 1 2; do compute-sanitizer --tool racecheck ./ring $mode; done
//
// With CUDA 13.0 it reports nothing for 0 and the same races for 1 and 2, so its reports for (1)
// are mistaken. The backward kernel for Hopper gives back LSE and D so, the forward kernel tiles
// (docs/log/method.md, "Machine code").
#include <cstdio>
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(unsigned b, int n) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(n) : "memory");
}
__device__ void arrive(unsigned b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ void expect(unsigned b, int n) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(n) : "memory");
}
__device__ void wait(unsigned b, unsigned parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra "
      "done;\nbra again;\ndone:\n}" ::"r"(b),
      "r"(parity)
      : "memory");
}
template <int kMode>
__global__ void ring(const float* from, float* to, int steps) {
  __shared__ alignas(128) float place[64];
  __shared__ alignas(8) unsigned long long full, empty;
  if (threadIdx.x == 0) {
    init(at(&full), 1);
    init(at(&empty), kMode == 0 ? 128 : 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 128) {
    for (int n = 0; n < steps; ++n) {
      wait(at(&empty), (n & 1) ^ 1);
      expect(at(&full), 256);
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, "
          "[%2];" ::"r"(at(place)),
          "l"(from + 64 * n), "r"(at(&full))
          : "memory");
    }
  } else if (threadIdx.x < 128) {
    float sum = 0;
    for (int n = 0; n < steps; ++n) {
      wait(at(&full), n & 1);
      sum += place[threadIdx.x / 2];
      if (kMode == 1) __syncwarp();
      if (kMode == 0 || threadIdx.x % 32 == 0) arrive(at(&empty));
    }
    to[threadIdx.x] = sum;
  }
}
int main(int argc, char** argv) {
  float *a, *b;
  cudaMalloc(&a, 64 * 16 * 4);
  cudaMalloc(&b, 512);
  cudaMemset(a, 0, 4096);
  int mode = argc > 1 ? argv[1][0] - '0' : 0;
  if (mode == 0) ring<0><<<1, 160>>>(a, b, 16);
  if (mode == 1) ring<1><<<1, 160>>>(a, b, 16);
  if (mode == 2) ring<2><<<1, 160>>>(a, b, 16);
  printf("%d %s\n", mode, cudaGetErrorString(cudaDeviceSynchronize()));
}
