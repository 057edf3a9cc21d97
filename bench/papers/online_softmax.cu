// Softmax of vectors in three passes and online, and with top-k fused, on a GPU (Milakov and
// Gimelshein 2018): the counterpart of online_softmax.cpp. f32, a block of threads a vector.
//   safe            read x for max; read x for sum of e^(x - m); read x, write y    4 accesses
//   online          read x for m and sum together; read x, write y                  3
//   safe, top-5     the three passes in one launch; in another, read y              5
//   online, top-5   read x for m, sum and the 5 largest together; y is not written  1
// A vector that stays in L1 or L2 between two passes costs no memory: the table says so by rates
// above the memory's. Every result is compared with fp64 before it is timed; runs alternate.
//   nvcc -O3 -std=c++17 -arch=native bench/papers/online_softmax.cu -o online_softmax_gpu
//   online_softmax_gpu [VECTORS]
constexpr int kThreads = 256, kTop = 5;

struct Sum {
  float m, l;  // largest so far; sum of e^(x - m)
};
// Associative (section 3.1), and {-inf, 0} is its unit.
__device__ Sum merge(Sum a, Sum b) {
  const float m = fmaxf(a.m, b.m);
  const float from = m == -INFINITY ? 0 : m;
  return {m, a.l * __expf(a.m - from) + b.l * __expf(b.m - from)};
}

// Of all threads of a block, by `merge`; every thread gets the result.
template <class T, class Merge>
__device__ T of_block(T x, Merge combine) {
  __shared__ T parts[kThreads];
  __syncthreads();  // nobody reads the one before
  parts[threadIdx.x] = x;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) {
      parts[threadIdx.x] = combine(parts[threadIdx.x], parts[threadIdx.x + step]);
    }
  }
  __syncthreads();
  return parts[0];
}
__device__ float sum_of_block(float x) {
  return of_block(x, [](float a, float b) { return a + b; });
}
__device__ float max_of_block(float x) {
  return of_block(x, [](float a, float b) { return fmaxf(a, b); });
}

__device__ void normalise(const float* x, float* y, int n, Sum of) {
  const float factor = 1 / of.l;
  for (int i = threadIdx.x; i < n; i += kThreads) y[i] = __expf(x[i] - of.m) * factor;
}

extern "C" __global__ void safe_softmax(const float* x, float* y, int n) {
  x += static_cast<long long>(blockIdx.x) * n;
  y += static_cast<long long>(blockIdx.x) * n;
  float m = -INFINITY, l = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) m = fmaxf(m, x[i]);
  m = max_of_block(m);
  for (int i = threadIdx.x; i < n; i += kThreads) l += __expf(x[i] - m);
  normalise(x, y, n, {m, sum_of_block(l)});
}

// Algorithm 3. The maximum grows some ten times in a long vector, so that branch is rare.
__device__ void add(Sum& of, float x) {
  if (x > of.m) {
    of.l *= __expf(of.m - x);
    of.m = x;
  }
  of.l += __expf(x - of.m);
}
__device__ Sum online_sum(const float* x, int n) {
  Sum of{-INFINITY, 0};
  for (int i = threadIdx.x; i < n; i += kThreads) add(of, x[i]);
  return of_block(of, [](Sum a, Sum b) { return merge(a, b); });
}
extern "C" __global__ void online_softmax(const float* x, float* y, int n) {
  x += static_cast<long long>(blockIdx.x) * n;
  y += static_cast<long long>(blockIdx.x) * n;
  normalise(x, y, n, online_sum(x, n));
}

struct Top {
  float value[kTop];
  int at[kTop];
};
__device__ void add(Top& top, float x, int at) {
  if (!(x > top.value[kTop - 1])) return;
#pragma unroll
  for (int i = kTop - 1; i >= 0; --i) {
    const bool here = i == 0 || !(x > top.value[i - 1]);
    top.value[i] = here ? x : top.value[i - 1];
    top.at[i] = here ? at : top.at[i - 1];
    if (here) return;
  }
}
__device__ Top no_top() {
  Top top;
  for (int i = 0; i < kTop; ++i) top.value[i] = -INFINITY, top.at[i] = -1;
  return top;
}
__device__ Top merge(Top a, const Top& b) {
  for (int i = 0; i < kTop; ++i) add(a, b.value[i], b.at[i]);
  return a;
}
__device__ void store_top(const Top& top, float* values, int* at, Sum of) {
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kTop; ++i) {
    values[blockIdx.x * kTop + i] = __expf(top.value[i] - of.m) / of.l;
    at[blockIdx.x * kTop + i] = top.at[i];
  }
}

// Of y, whose values they are.
extern "C" __global__ void top_of(const float* y, float* values, int* at, int n) {
  y += static_cast<long long>(blockIdx.x) * n;
  Top top = no_top();
  for (int i = threadIdx.x; i < n; i += kThreads) add(top, y[i], i);
  top = of_block(top, [](Top a, Top b) { return merge(a, b); });
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kTop; ++i) {
    values[blockIdx.x * kTop + i] = top.value[i];
    at[blockIdx.x * kTop + i] = top.at[i];
  }
}
// Algorithm 4.
extern "C" __global__ void online_top(const float* x, float* values, int* at, int n) {
  x += static_cast<long long>(blockIdx.x) * n;
  Top top = no_top();
  Sum of{-INFINITY, 0};
  for (int i = threadIdx.x; i < n; i += kThreads) {
    add(of, x[i]);
    add(top, x[i], i);
  }
  of = of_block(of, [](Sum a, Sum b) { return merge(a, b); });
  top = of_block(top, [](Top a, Top b) { return merge(a, b); });
  store_top(top, values, at, of);
}

#ifndef __CUDACC_RTC__
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

namespace {

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

struct Arrays {
  int vectors, n;
  float *x, *y, *values;
  int* at;
};

struct Way {
  const char* name;
  int accesses;  // of an element
  bool writes, finds;
  std::function<void(const Arrays&)> run;
};

const Way kWays[] = {
    {"safe", 4, true, false,
     [](const Arrays& a) { safe_softmax<<<a.vectors, kThreads>>>(a.x, a.y, a.n); }},
    {"online", 3, true, false,
     [](const Arrays& a) { online_softmax<<<a.vectors, kThreads>>>(a.x, a.y, a.n); }},
    {"safe, top-5", 5, true, true,
     [](const Arrays& a) {
       safe_softmax<<<a.vectors, kThreads>>>(a.x, a.y, a.n);
       top_of<<<a.vectors, kThreads>>>(a.y, a.values, a.at, a.n);
     }},
    {"online, top-5", 1, false, true,
     [](const Arrays& a) { online_top<<<a.vectors, kThreads>>>(a.x, a.values, a.at, a.n); }}};

// The first and the last vector against fp64.
bool is_right(const Way& way, const Arrays& a) {
  const std::size_t all = static_cast<std::size_t>(a.vectors) * a.n;
  must(cudaMemset(a.y, 0xff, all * sizeof(float)));
  must(cudaMemset(a.values, 0xff, sizeof(float) * kTop * a.vectors));
  way.run(a);
  must(cudaDeviceSynchronize());
  bool right = true;
  for (const int vector : {0, a.vectors - 1}) {
    std::vector<float> x(a.n), y(a.n), values(kTop);
    const std::size_t from = static_cast<std::size_t>(vector) * a.n;
    must(cudaMemcpy(x.data(), a.x + from, a.n * sizeof(float), cudaMemcpyDeviceToHost));
    must(cudaMemcpy(y.data(), a.y + from, a.n * sizeof(float), cudaMemcpyDeviceToHost));
    must(cudaMemcpy(values.data(), a.values + vector * kTop, kTop * sizeof(float),
                    cudaMemcpyDeviceToHost));
    std::vector<double> expected(a.n);
    const double m = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (int i = 0; i < a.n; ++i) sum += expected[i] = std::exp(x[i] - m);
    for (double& value : expected) value /= sum;
    for (int i = 0; way.writes && i < a.n; ++i) {
      right = right && std::abs(y[i] - expected[i]) <= 1e-5 * expected[i];
    }
    std::sort(expected.rbegin(), expected.rend());
    for (int i = 0; way.finds && i < kTop; ++i) {
      right = right && std::abs(values[i] - expected[i]) <= 1e-5 * expected[i];
    }
  }
  return right;
}

float milliseconds(const Way& way, const Arrays& a) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  must(cudaEventRecord(begin));
  way.run(a);
  must(cudaEventRecord(end));
  must(cudaEventSynchronize(end));
  float ms = 0;
  must(cudaEventElapsedTime(&ms, begin, end));
  must(cudaEventDestroy(begin));
  must(cudaEventDestroy(end));
  return ms;
}

}  // namespace

int main(int argc, char** argv) {
  const int vectors = argc > 1 ? std::atoi(argv[1]) : 4000;  // the paper's large batch
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::printf("%8s  %-14s %9s %9s %9s %9s\n", "V", "", "bytes/el", "us", "GB/s", "speed-up");
  for (const int n : {250, 1000, 4000, 25000, 100000}) {
    const std::size_t all = static_cast<std::size_t>(vectors) * n;
    std::vector<float> some(1000003), x(all);
    for (float& value : some) value = normal(random);
    for (std::size_t i = 0; i < all; ++i) x[i] = some[i % some.size()];
    Arrays a{vectors, n, nullptr, nullptr, nullptr, nullptr};
    must(cudaMalloc(&a.x, all * sizeof(float)));
    must(cudaMalloc(&a.y, all * sizeof(float)));
    must(cudaMalloc(&a.values, sizeof(float) * kTop * vectors));
    must(cudaMalloc(&a.at, sizeof(int) * kTop * vectors));
    must(cudaMemcpy(a.x, x.data(), all * sizeof(float), cudaMemcpyHostToDevice));
    std::vector<std::vector<float>> times(std::size(kWays));
    for (const Way& way : kWays) {
      if (!is_right(way, a)) return std::fprintf(stderr, "%s is wrong, V %d\n", way.name, n), 1;
    }
    for (int round = 0; round < 31; ++round) {
      for (std::size_t w = 0; w < std::size(kWays); ++w) {
        times[w].push_back(milliseconds(kWays[w], a));
      }
    }
    double baseline = 0;
    for (std::size_t w = 0; w < std::size(kWays); ++w) {
      std::sort(times[w].begin(), times[w].end());
      const double seconds = times[w][times[w].size() / 2] * 1e-3;
      if (w % 2 == 0) baseline = seconds;
      std::printf("%8d  %-14s %9d %9.1f %9.0f %9.2f\n", n, kWays[w].name, 4 * kWays[w].accesses,
                  seconds * 1e6, 4e-9 * kWays[w].accesses * static_cast<double>(all) / seconds,
                  baseline / seconds);
    }
    for (void* pointer : {static_cast<void*>(a.x), static_cast<void*>(a.y),
                          static_cast<void*>(a.values), static_cast<void*>(a.at)}) {
      must(cudaFree(pointer));
    }
  }
  return 0;
}
#endif
