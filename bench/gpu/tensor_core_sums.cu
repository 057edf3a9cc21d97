// How tensor cores add: which model of truncated sums explains every bit of products of 16-bit
// numbers in float, and how far off the short forms of tanh, exp2, log2 and 1 / x are.
//
//   nvcc -O2 -std=c++20 --extended-lambda -arch=sm_90a -I src/cuda/device -o sums
//   bench/gpu/tensor_core_sums.cu && ./sums
//
// A model: products and accumulator are aligned to the largest exponent among them (of a product:
// the sum of those of its factors), cut to so many bits below it, added exactly, and the sum is cut
// to float. Printed are the models that explain most of the results (docs/numerics.md, "Tensor
// cores").
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "expr/fast.cuh"

namespace {

constexpr int kColumns = 16;

struct Test {
  std::uint16_t a[kColumns], b[kColumns];
  float c;
};

template <bool kHalf>
__device__ void multiply_warp(float* d, const unsigned* a, const unsigned* b) {
  if constexpr (kHalf) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// One warp a test; all rows of A are alike and all columns of B.
template <bool kHalf>
__global__ void warp_products(const Test* tests, float* results) {
  const Test& t = tests[blockIdx.x];
  const unsigned lane = threadIdx.x % 32, at = lane % 4 * 2;
  const auto pair = [](const std::uint16_t* x) { return x[0] | static_cast<unsigned>(x[1]) << 16; };
  const unsigned a[4] = {pair(t.a + at), pair(t.a + at), pair(t.a + at + 8), pair(t.a + at + 8)};
  const unsigned b[2] = {pair(t.b + at), pair(t.b + at + 8)};
  float d[4] = {t.c, t.c, t.c, t.c};
  multiply_warp<kHalf>(d, a, b);
  if (lane == 0) results[blockIdx.x] = d[0];
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
// One warpgroup a test: A in registers, B without a swizzle, 8 columns in rows along k.
template <bool kHalf>
__global__ void group_products(const Test* tests, float* results) {
  __shared__ alignas(128) std::uint16_t b[2][8][8];
  const Test& t = tests[blockIdx.x];
  for (unsigned i = threadIdx.x; i < 128; i += blockDim.x) {
    b[i / 64][i / 8 % 8][i % 8] = t.b[i / 64 * 8 + i % 8];
  }
  __syncthreads();
  const unsigned at = threadIdx.x % 4 * 2;
  const auto pair = [](const std::uint16_t* x) { return x[0] | static_cast<unsigned>(x[1]) << 16; };
  const unsigned a[4] = {pair(t.a + at), pair(t.a + at), pair(t.a + at + 8), pair(t.a + at + 8)};
  float d[4] = {t.c, t.c, t.c, t.c};
  const std::uint64_t address = static_cast<unsigned>(__cvta_generic_to_shared(&b[0][0][0]));
  const std::uint64_t descriptor = (address >> 4 & 0x3fff) | 8ull << 16 | 8ull << 32;
  asm volatile("fence.proxy.async;\nwgmma.fence.sync.aligned;" ::: "memory");
  if constexpr (kHalf) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, "
        "1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "%8, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor));
  }
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  asm volatile("" : "+f"(d[0]));
  if (threadIdx.x == 0) results[blockIdx.x] = d[0];
}
#else
template <bool kHalf>
__global__ void group_products(const Test*, float*) {}
#endif

// ---- models

double widen(std::uint16_t bits, bool half) {
  if (half) return __half2float(__half(__half_raw{bits}));
  return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{bits}));
}
int exponent(double x) { return x == 0 ? -1000 : std::ilogb(x); }
double cut(double x, int to, bool down) {  // to a multiple of 2^to
  const double scaled = std::ldexp(x, -to);
  return std::ldexp(down ? std::floor(scaled) : std::trunc(scaled), to);
}

struct Model {
  int group, bits;        // columns added at once; bits below the largest exponent
  bool normalised;        // exponent of a product: of its value, not the sum of its factors'
  bool down;              // terms are cut towards -infinity, not towards 0
  bool rounds;            // the sum is rounded to float, not cut
  bool with_accumulator;  // it is aligned with the products, not added to their cut sum
};
std::string text(const Model& m) {
  return "groups of " + std::to_string(m.group) + ", " + std::to_string(m.bits) + " bits, " +
         (m.normalised ? "products normalised, " : "") + (m.down ? "cut down, " : "cut, ") +
         (m.rounds ? "sum rounded, " : "sum cut, ") +
         (m.with_accumulator ? "with accumulator" : "accumulator apart");
}
float to_float(double x, bool rounds) {
  const auto f = static_cast<float>(x);
  if (rounds || std::abs(static_cast<double>(f)) <= std::abs(x)) return f;
  return std::nextafter(f, 0.0f);
}
float predict(const Test& t, bool half, const Model& m) {
  double sum = t.c;
  for (int begin = 0; begin < kColumns; begin += m.group) {
    double terms[kColumns + 1];
    int largest = m.with_accumulator ? exponent(sum) : -1000;
    for (int k = 0; k < m.group; ++k) {
      const double x = widen(t.a[begin + k], half), y = widen(t.b[begin + k], half);
      terms[k] = x * y;
      const int e = m.normalised ? exponent(terms[k]) : exponent(x) + exponent(y);
      if (terms[k] != 0 && e > largest) largest = e;
    }
    if (largest == -1000) continue;
    double total = m.with_accumulator ? cut(sum, largest - m.bits, m.down) : 0;
    for (int k = 0; k < m.group; ++k) total += cut(terms[k], largest - m.bits, m.down);
    if (!m.with_accumulator) total = sum + cut(total, exponent(total) - m.bits, m.down);
    sum = to_float(total, m.rounds);
  }
  return static_cast<float>(sum);
}

// ---- tests

std::uint16_t narrow(double x, bool half) {
  std::uint16_t bits;
  if (half) {
    const __half h = __float2half(static_cast<float>(x));
    std::memcpy(&bits, &h, 2);
  } else {
    const __nv_bfloat16 h = __float2bfloat16(static_cast<float>(x));
    std::memcpy(&bits, &h, 2);
  }
  return bits;
}

// spread: of exponents. accumulator: its size.
std::vector<Test> random_tests(int count, bool half, double spread, double accumulator,
                               unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> exponents(-spread, spread);
  std::vector<Test> tests(count);
  for (Test& t : tests) {
    for (int k = 0; k < kColumns; ++k) {
      t.a[k] = narrow(normal(random) * std::exp2(exponents(random)), half);
      t.b[k] = narrow(normal(random) * std::exp2(exponents(random)), half);
    }
    t.c = static_cast<float>(accumulator * normal(random) * std::exp2(exponents(random)));
  }
  return tests;
}

std::vector<float> run(const std::vector<Test>& tests, bool half, bool group) {
  Test* device_tests;
  float* device_results;
  cudaMalloc(&device_tests, tests.size() * sizeof(Test));
  cudaMalloc(&device_results, tests.size() * sizeof(float));
  cudaMemcpy(device_tests, tests.data(), tests.size() * sizeof(Test), cudaMemcpyHostToDevice);
  const auto count = static_cast<unsigned>(tests.size());
  if (group) {
    half ? group_products<true><<<count, 128>>>(device_tests, device_results)
         : group_products<false><<<count, 128>>>(device_tests, device_results);
  } else {
    half ? warp_products<true><<<count, 32>>>(device_tests, device_results)
         : warp_products<false><<<count, 32>>>(device_tests, device_results);
  }
  std::vector<float> results(tests.size());
  cudaMemcpy(results.data(), device_results, results.size() * sizeof(float),
             cudaMemcpyDeviceToHost);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    std::printf("%s\n", cudaGetErrorString(error));
  }
  cudaFree(device_tests);
  cudaFree(device_results);
  return results;
}

// 1 and eight small products: which bits are kept.
void print_known(bool half, bool group) {
  std::printf("  1 + 8 x - 1 for x = 2^-21 .. 2^-28 and -2^-21 .. -2^-28, in units of 2^-23: ");
  std::vector<Test> tests;
  for (const double sign : {1.0, -1.0}) {
    for (int e = 21; e <= 28; ++e) {
      Test t{};  // c = 1, eight terms of 2^-e
      t.c = 1;
      for (int k = 0; k < 8; ++k) {
        t.a[k] = narrow(std::exp2(-e / 2), half);
        t.b[k] = narrow(sign * std::exp2(-(e - e / 2)), half);
      }
      tests.push_back(t);
    }
  }
  const std::vector<float> got = run(tests, half, group);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const int e = 21 + static_cast<int>(i % 8);
    std::printf("%s%g of %g",
                i == 8  ? " | "
                : i > 0 ? ", "
                        : "",
                (got[i] - 1.0) * 0x1p23, (i < 8 ? 8.0 : -8.0) * std::exp2(23 - e));
  }
  std::printf("\n");
}

void fit(bool half, bool group) {
  std::printf("%s, %s\n", group ? "wgmma m64n8k16" : "mma.sync m16n8k16", half ? "f16" : "bf16");
  print_known(half, group);
  std::vector<Test> tests = random_tests(4000, half, 0, 0, 1);
  for (const auto& [spread, accumulator] :
       {std::pair{0.0, 4.0}, {3.0, 1.0}, {3.0, 64.0}, {6.0, 8.0}}) {
    const auto more = random_tests(4000, half, spread, accumulator, 2);
    tests.insert(tests.end(), more.begin(), more.end());
  }
  const std::vector<float> got = run(tests, half, group);
  std::vector<std::pair<int, Model>> best;
  for (const int columns : {4, 8, 16}) {
    for (int bits = 22; bits <= 30; ++bits) {
      for (int flags = 0; flags < 16; ++flags) {
        const Model m{columns,         bits, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0,
                      (flags & 8) == 0};
        int same = 0;
        for (std::size_t i = 0; i < tests.size(); ++i) {
          const float p = predict(tests[i], half, m);
          same += p == got[i];
        }
        best.push_back({same, m});
      }
    }
  }
  std::sort(best.begin(), best.end(),
            [](const auto& x, const auto& y) { return x.first > y.first; });
  for (int i = 0; i < 3; ++i) {
    std::printf("  %d of %zu: %s\n", best[i].first, tests.size(), text(best[i].second).c_str());
  }
  int shown = 0;
  for (std::size_t i = 0; i < tests.size() && shown < 3; ++i) {
    const float p = predict(tests[i], half, best[0].second);
    if (p == got[i]) continue;
    ++shown;
    std::printf("  not explained, test %zu: got %a, predicted %a, c %a, products", i, got[i], p,
                tests[i].c);
    for (int k = 0; k < kColumns; ++k)
      std::printf(" %a", widen(tests[i].a[k], half) * widen(tests[i].b[k], half));
    std::printf("\n");
  }
}

// ---- short forms: the largest relative error over all floats from 2^least to 2^most

struct Errors {
  double largest, at, mean;
};
template <class Function, class Exact>
__global__ void errors_of(Function function, Exact exact, float sign, unsigned begin, unsigned end,
                          double* largest, float* at, double* sum) {
  const unsigned stride = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x;
  double worst = 0, total = 0;
  float where = 0;
  for (unsigned bits = begin + thread; bits < end; bits += stride) {
    const float x = sign * __uint_as_float(bits);
    const double want = exact(static_cast<double>(x));
    const double error = (static_cast<double>(function(x)) - want) / want;
    total += error;
    if (fabs(error) > worst) {
      worst = fabs(error);
      where = x;
    }
  }
  largest[thread] = worst;
  at[thread] = where;
  sum[thread] = total;
}
template <class Function, class Exact>
void short_form(const char* name, Function function, Exact exact, float sign, float least,
                float most) {
  constexpr int kBlocks = 264, kThreads = 256, kAll = kBlocks * kThreads;
  double *largest, *sum;
  float* at;
  cudaMallocManaged(&largest, kAll * sizeof(double));
  cudaMallocManaged(&sum, kAll * sizeof(double));
  cudaMallocManaged(&at, kAll * sizeof(float));
  unsigned begin, end;
  std::memcpy(&begin, &least, 4);
  std::memcpy(&end, &most, 4);
  errors_of<<<kBlocks, kThreads>>>(function, exact, sign, begin, end, largest, at, sum);
  cudaDeviceSynchronize();
  double worst = 0, total = 0;
  float where = 0;
  for (int i = 0; i < kAll; ++i) {
    total += sum[i];
    if (largest[i] > worst) {
      worst = largest[i];
      where = at[i];
    }
  }
  std::printf("%-28s [%g, %g]: relative error up to %.3g (2^-24 is 6e-8) at %.9g, mean %.2g\n",
              name, static_cast<double>(sign * least), static_cast<double>(sign * most), worst,
              static_cast<double>(where), total / (end - begin));
}

}  // namespace

int main() {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  std::printf("%s\n", properties.name);
  for (const bool group : {false, true}) {
    if (group && properties.major != 9) continue;
    for (const bool half : {false, true}) fit(half, group);
  }
  namespace device = attn::device;
  const auto exact_tanh = [] __device__(double x) { return tanh(x); };
  const auto our_tanh = [] __device__(float x) { return device::fast::attn_tanh(x); };
  for (const auto& [least, most] : {std::pair{0x1p-10f, 0.1f},
                                    {0.1f, 0.3f},
                                    {0.3f, 0.5f},
                                    {0.5f, 0.6f},
                                    {0.6f, 1.0f},
                                    {1.0f, 9.0f}}) {
    short_form("tanh of fast.cuh, precise", our_tanh, exact_tanh, 1, least, most);
  }
  for (const auto& [least, most] :
       {std::pair{0x1p-10f, 0.3f}, {0.3f, 0.6f}, {0.6f, 1.0f}, {1.0f, 9.0f}}) {
    short_form(
        "tanh of large alone",
        [] __device__(float a) {
          return 1 -
                 2 * device::mufu::reciprocal(device::mufu::exp2(2 * device::fast::kLog2e * a) + 1);
        },
        exact_tanh, 1, least, most);
    short_form(
        "tanhf", [] __device__(float x) { return tanhf(x); }, exact_tanh, 1, least, most);
  }
  const auto exact_exp2 = [] __device__(double x) { return exp2(x); };
  for (const float sign : {1.0f, -1.0f}) {
    short_form(
        "ex2.approx", [] __device__(float x) { return device::mufu::exp2(x); }, exact_exp2, sign,
        0x1p-10f, 1.0f);
    short_form(
        "ex2.approx", [] __device__(float x) { return device::mufu::exp2(x); }, exact_exp2, sign,
        1.0f, 100.0f);
  }
  short_form(
      "exp of exact.cuh", [] __device__(float x) { return device::exact::attn_exp(x); },
      [] __device__(double x) { return exp(x); }, -1, 0x1p-10f, 80.0f);
  short_form(
      "log of exact.cuh", [] __device__(float x) { return device::exact::attn_log(x); },
      [] __device__(double x) { return log(x); }, 1, 1.0001f, 1e6f);
  short_form(
      "lg2.approx", [] __device__(float x) { return device::mufu::log2(x); },
      [] __device__(double x) { return log2(x); }, 1, 2.0f, 1e6f);
  short_form(
      "rcp.approx", [] __device__(float x) { return device::mufu::reciprocal(x); },
      [] __device__(double x) { return 1 / x; }, 1, 1.0f, 1e6f);
}
