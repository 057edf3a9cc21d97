// Softmax of vectors in three passes and online, and with top-k, by attn::softmax and softmax_top
// on a GPU (Milakov and Gimelshein 2018): the counterpart of online_softmax.cpp. f32.
//   three passes          read x for max; read x for the sum; read x, write y     4 accesses
//   online                read x for max and sum together; read x, write y        3
//   three passes, top-5   read x for max, for the sum, for the 5 largest          3
//   online, top-5         read x for all of these together                        1
// A vector that stays in L1 or L2 between two passes costs no memory: the table says so by rates
// above the memory's. Every result is compared with fp64 before it is timed; runs alternate. What
// the host takes to launch is hidden behind a large memset and a call that is not timed.
//   nvcc -O3 -std=c++20 -arch=native -Iinclude bench/papers/online_softmax.cu build/libattn.a
//   -lfmt -ldl -o online_softmax_gpu
//   online_softmax_gpu [VECTORS [V...]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "attn/attn.hpp"

namespace {

constexpr int kTop = 5;

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

struct Arrays {
  int vectors, n;
  float *x, *y, *values;
  int* at;

  attn::Tensor view(void* data, attn::DType dtype, int columns) const {
    return attn::tensor(data, dtype, {vectors, columns}, {attn::DeviceType::cuda, 0});
  }
  // In the default stream.
  void softmax(attn::SoftmaxAlgorithm algorithm) const {
    attn::softmax(view(x, attn::DType::f32, n), view(y, attn::DType::f32, n), {}, algorithm);
  }
  void top(attn::SoftmaxAlgorithm algorithm) const {
    attn::softmax_top(view(x, attn::DType::f32, n), view(values, attn::DType::f32, kTop),
                      view(at, attn::DType::i32, kTop), {}, algorithm);
  }
};

struct Way {
  const char* name;
  int accesses;  // of an element
  bool writes, finds;
  std::function<void(const Arrays&)> run;
};

constexpr auto kThreePass = attn::SoftmaxAlgorithm::three_pass;
constexpr auto kOnline = attn::SoftmaxAlgorithm::online;
const Way kWays[] = {
    {"three passes", 4, true, false, [](const Arrays& a) { a.softmax(kThreePass); }},
    {"online", 3, true, false, [](const Arrays& a) { a.softmax(kOnline); }},
    {"three passes, top-5", 3, false, true, [](const Arrays& a) { a.top(kThreePass); }},
    {"online, top-5", 1, false, true, [](const Arrays& a) { a.top(kOnline); }}};

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

constexpr std::size_t kBusyBytes = std::size_t{1} << 30;

// A call's time; `busy` has kBusyBytes.
float milliseconds(const Way& way, const Arrays& a, void* busy) {
  constexpr int kCalls = 4;
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  must(cudaMemsetAsync(busy, 0, kBusyBytes));
  way.run(a);
  must(cudaEventRecord(begin));
  for (int i = 0; i < kCalls; ++i) way.run(a);
  must(cudaEventRecord(end));
  must(cudaEventSynchronize(end));
  float ms = 0;
  must(cudaEventElapsedTime(&ms, begin, end));
  must(cudaEventDestroy(begin));
  must(cudaEventDestroy(end));
  return ms / kCalls;
}

}  // namespace

int main(int argc, char** argv) {
  const int vectors = argc > 1 ? std::atoi(argv[1]) : 4000;  // the paper's large batch
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::printf("%8s  %-20s %9s %9s %9s %9s\n", "V", "", "bytes/el", "us", "GB/s", "speed-up");
  std::vector<int> lengths;
  for (int i = 2; i < argc; ++i) lengths.push_back(std::atoi(argv[i]));
  if (lengths.empty()) lengths = {250, 1000, 4000, 25000, 100000};
  void* busy = nullptr;
  must(cudaMalloc(&busy, kBusyBytes));
  for (const int n : lengths) {
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
        times[w].push_back(milliseconds(kWays[w], a, busy));
      }
    }
    double baseline = 0;
    for (std::size_t w = 0; w < std::size(kWays); ++w) {
      std::sort(times[w].begin(), times[w].end());
      const double seconds = times[w][times[w].size() / 2] * 1e-3;
      if (w % 2 == 0) baseline = seconds;
      std::printf("%8d  %-20s %9d %9.1f %9.0f %9.2f\n", n, kWays[w].name, 4 * kWays[w].accesses,
                  seconds * 1e6, 4e-9 * kWays[w].accesses * static_cast<double>(all) / seconds,
                  baseline / seconds);
    }
    for (void* pointer : {static_cast<void*>(a.x), static_cast<void*>(a.y),
                          static_cast<void*>(a.values), static_cast<void*>(a.at)}) {
      must(cudaFree(pointer));
    }
  }
  must(cudaFree(busy));
  return 0;
}
