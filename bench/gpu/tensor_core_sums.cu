// How tensor cores add: which model of truncated sums explains every bit of products of 16-bit
// numbers and of 8-bit floats in float, and how far off the short forms of tanh, exp2, log2 and
// 1 / x are.
//
//   nvcc -O2 -std=c++20 --extended-lambda -arch=sm_90a -I src/cuda/device -o sums
//   bench/gpu/tensor_core_sums.cu && ./sums
//
// A model: products and accumulator are aligned to the largest exponent among them (of a product:
// the sum of those of its factors), cut to so many bits below it, added exactly, and the sum is cut
// to float, or to fewer bits below its own exponent. Printed are the models that explain most of
// the results (docs/numerics.md, "Tensor cores").
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

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

enum class Type { bf16, f16, e4m3, e5m2 };
constexpr Type kTypes[] = {Type::bf16, Type::f16, Type::e4m3, Type::e5m2};
constexpr const char* kNames[] = {"bf16", "f16", "e4m3", "e5m2"};
constexpr bool is_float8(Type type) { return type == Type::e4m3 || type == Type::e5m2; }
// Of an instruction: 32 bytes of each row of A and column of B.
constexpr int kMostColumns = 32;
constexpr int columns_of(Type type) { return is_float8(type) ? 32 : 16; }

struct Test {
  unsigned a[8], b[8];
  float c;
};

template <Type kType>
__device__ void multiply_warp(float* d, const unsigned* a, const unsigned* b) {
  if constexpr (kType == Type::f16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(kType == Type::bf16, "8-bit floats are multiplied by wgmma");
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// One warp a test; all rows of A are alike and all columns of B. A thread has four bytes of a row
// in each register.
template <Type kType>
__global__ void warp_products(const Test* tests, float* results) {
  const Test& t = tests[blockIdx.x];
  const unsigned lane = threadIdx.x % 32, at = lane % 4;
  const unsigned a[4] = {t.a[at], t.a[at], t.a[at + 4], t.a[at + 4]};
  const unsigned b[2] = {t.b[at], t.b[at + 4]};
  float d[4] = {t.c, t.c, t.c, t.c};
  multiply_warp<kType>(d, a, b);
  if (lane == 0) results[blockIdx.x] = d[0];
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define ATTN_GROUP_PRODUCT(shape_and_types, flags)                          \
  asm volatile("wgmma.mma_async.sync.aligned." shape_and_types              \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1" flags ";" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor))
// One warpgroup a test: A in registers, B without a swizzle, 8 columns in rows along k.
template <Type kType>
__global__ void group_products(const Test* tests, float* results) {
  __shared__ alignas(128) unsigned b[2][8][4];
  const Test& t = tests[blockIdx.x];
  if (threadIdx.x < 64) {
    b[threadIdx.x / 32][threadIdx.x / 4 % 8][threadIdx.x % 4] =
        t.b[threadIdx.x / 32 * 4 + threadIdx.x % 4];
  }
  __syncthreads();
  const unsigned at = threadIdx.x % 4;
  const unsigned a[4] = {t.a[at], t.a[at], t.a[at + 4], t.a[at + 4]};
  float d[4] = {t.c, t.c, t.c, t.c};
  const std::uint64_t address = static_cast<unsigned>(__cvta_generic_to_shared(&b[0][0][0]));
  const std::uint64_t descriptor = (address >> 4 & 0x3fff) | 8ull << 16 | 8ull << 32;
  asm volatile("fence.proxy.async;\nwgmma.fence.sync.aligned;" ::: "memory");
  if constexpr (kType == Type::bf16) ATTN_GROUP_PRODUCT("m64n8k16.f32.bf16.bf16", ", 0");
  if constexpr (kType == Type::f16) ATTN_GROUP_PRODUCT("m64n8k16.f32.f16.f16", ", 0");
  if constexpr (kType == Type::e4m3) ATTN_GROUP_PRODUCT("m64n8k32.f32.e4m3.e4m3", "");
  if constexpr (kType == Type::e5m2) ATTN_GROUP_PRODUCT("m64n8k32.f32.e5m2.e5m2", "");
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  asm volatile("" : "+f"(d[0]));
  if (threadIdx.x == 0) results[blockIdx.x] = d[0];
}
#else
template <Type kType>
__global__ void group_products(const Test*, float*) {}
#endif

// ---- models

double widen(Type type, unsigned bits) {
  switch (type) {
    case Type::bf16:
      return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{static_cast<unsigned short>(bits)}));
    case Type::f16:
      return __half2float(__half(__half_raw{static_cast<unsigned short>(bits)}));
    case Type::e4m3:
    case Type::e5m2:
      break;
  }
  const auto kind = type == Type::e4m3 ? __NV_E4M3 : __NV_E5M2;
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(bits), kind)));
}
unsigned narrow(Type type, double x) {
  switch (type) {
    case Type::bf16:
      return static_cast<__nv_bfloat16_raw>(__float2bfloat16(static_cast<float>(x))).x;
    case Type::f16:
      return static_cast<__half_raw>(__float2half(static_cast<float>(x))).x;
    case Type::e4m3:
    case Type::e5m2:
      break;
  }
  return __nv_cvt_double_to_fp8(x, __NV_SATFINITE, type == Type::e4m3 ? __NV_E4M3 : __NV_E5M2);
}
// Element k of 32 bytes.
double get(Type type, const unsigned* words, int k) {
  return is_float8(type) ? widen(type, words[k / 4] >> 8 * (k % 4) & 0xff)
                         : widen(type, words[k / 2] >> 16 * (k % 2) & 0xffff);
}
void set(Type type, unsigned* words, int k, double x) {
  if (is_float8(type)) {
    words[k / 4] |= narrow(type, x) << 8 * (k % 4);
  } else {
    words[k / 2] |= narrow(type, x) << 16 * (k % 2);
  }
}

constexpr int kNone = -1000;  // the exponent of 0
int exponent(double x) { return x == 0 ? kNone : std::ilogb(x); }
int least_exponent(Type type) {  // of normal numbers
  constexpr int kLeast[] = {-126, -14, -6, -14};
  return kLeast[static_cast<int>(type)];
}
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
  bool subnormal;         // factors below the normal numbers have the exponent of their value
  int kept;               // bits of the sum below its exponent; 0: those of a float
};
std::string text(const Model& m) {
  return "groups of " + std::to_string(m.group) + ", " + std::to_string(m.bits) + " bits, " +
         (m.normalised ? "products normalised, " : "") +
         (m.subnormal ? "subnormal numbers normalised, " : "") + (m.down ? "cut down, " : "cut, ") +
         (m.kept > 0 ? "sum cut to " + std::to_string(m.kept) + " bits, "
          : m.rounds ? "sum rounded, "
                     : "sum cut, ") +
         (m.with_accumulator ? "with accumulator" : "accumulator apart");
}
float to_float(double x, bool rounds) {
  const auto f = static_cast<float>(x);
  if (rounds || std::abs(static_cast<double>(f)) <= std::abs(x)) return f;
  return std::nextafter(f, 0.0f);
}

// A test as numbers, and its exponents by both meanings of those of subnormal numbers.
struct Terms {
  double c, products[kMostColumns];
  int exponents[2][kMostColumns];
};
Terms terms_of(Type type, const Test& t) {
  Terms terms{};
  terms.c = t.c;
  for (int k = 0; k < columns_of(type); ++k) {
    const double x = get(type, t.a, k), y = get(type, t.b, k);
    terms.products[k] = x * y;
    const int least = least_exponent(type);
    terms.exponents[0][k] = std::max(exponent(x), least) + std::max(exponent(y), least);
    terms.exponents[1][k] = exponent(x) + exponent(y);
  }
  return terms;
}
float predict(const Terms& t, int columns, const Model& m) {
  double sum = t.c;
  for (int begin = 0; begin < columns; begin += m.group) {
    int largest = m.with_accumulator ? exponent(sum) : kNone;
    for (int k = begin; k < begin + m.group; ++k) {
      if (t.products[k] == 0) continue;
      largest =
          std::max(largest, m.normalised ? exponent(t.products[k]) : t.exponents[m.subnormal][k]);
    }
    if (largest == kNone) continue;
    double total = m.with_accumulator ? cut(sum, largest - m.bits, m.down) : 0;
    for (int k = begin; k < begin + m.group; ++k) {
      total += cut(t.products[k], largest - m.bits, m.down);
    }
    if (!m.with_accumulator) total = sum + cut(total, exponent(total) - m.bits, m.down);
    if (m.kept > 0 && total != 0) total = cut(total, exponent(total) - m.kept, m.down);
    sum = to_float(total, m.rounds);
  }
  return static_cast<float>(sum);
}

// ---- tests

// spread: of exponents. accumulator: its size.
std::vector<Test> random_tests(int count, Type type, double spread, double accumulator,
                               unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> exponents(-spread, spread);
  std::vector<Test> tests(count);
  for (Test& t : tests) {
    for (int k = 0; k < columns_of(type); ++k) {
      set(type, t.a, k, normal(random) * std::exp2(exponents(random)));
      set(type, t.b, k, normal(random) * std::exp2(exponents(random)));
    }
    t.c = static_cast<float>(accumulator * normal(random) * std::exp2(exponents(random)));
  }
  return tests;
}

template <Type kType>
void launch(const Test* tests, float* results, unsigned count, bool group) {
  if (group) {
    group_products<kType><<<count, 128>>>(tests, results);
  } else if constexpr (!is_float8(kType)) {
    warp_products<kType><<<count, 32>>>(tests, results);
  }
}
std::vector<float> run(const std::vector<Test>& tests, Type type, bool group) {
  Test* device_tests;
  float* device_results;
  cudaMalloc(&device_tests, tests.size() * sizeof(Test));
  cudaMalloc(&device_results, tests.size() * sizeof(float));
  cudaMemcpy(device_tests, tests.data(), tests.size() * sizeof(Test), cudaMemcpyHostToDevice);
  const auto count = static_cast<unsigned>(tests.size());
  switch (type) {
    case Type::bf16:
      launch<Type::bf16>(device_tests, device_results, count, group);
      break;
    case Type::f16:
      launch<Type::f16>(device_tests, device_results, count, group);
      break;
    case Type::e4m3:
      launch<Type::e4m3>(device_tests, device_results, count, group);
      break;
    case Type::e5m2:
      launch<Type::e5m2>(device_tests, device_results, count, group);
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

// 1, and eight small products: which bits are kept, beside the accumulator and beside a product.
void print_known(Type type, bool group) {
  const int first = is_float8(type) ? 9 : 21;
  for (const bool accumulator : {true, false}) {
    std::printf("  1 (%s) + 8 x - 1 for x = 2^-%d .. 2^-%d, then negative, in units of x: ",
                accumulator ? "accumulator" : "product", first, first + 7);
    for (const double sign : {1.0, -1.0}) {
      std::vector<Test> tests;
      for (int e = first; e < first + 8; ++e) {
        Test t{};
        t.c = accumulator ? 1 : 0;
        if (!accumulator) {
          set(type, t.a, 8, 1);
          set(type, t.b, 8, 1);
        }
        for (int k = 0; k < 8; ++k) {
          set(type, t.a, k, std::exp2(-e / 2));
          set(type, t.b, k, sign * std::exp2(-(e - e / 2)));
        }
        tests.push_back(t);
      }
      const std::vector<float> got = run(tests, type, group);
      for (std::size_t i = 0; i < got.size(); ++i) {
        std::printf("%g ", (got[i] - 1.0) * std::exp2(first + static_cast<int>(i)));
      }
    }
    std::printf("\n");
  }
}

std::vector<Model> models_of(Type type) {
  std::vector<Model> models;
  const bool float8 = is_float8(type);
  for (int columns = 4; columns <= columns_of(type); columns *= 2) {
    for (int bits = float8 ? 10 : 22; bits <= (float8 ? 20 : 30); ++bits) {
      for (int flags = 0; flags < 32; ++flags) {
        Model m{columns,           bits,
                (flags & 1) != 0,  (flags & 2) != 0,
                (flags & 4) != 0,  (flags & 8) == 0,
                (flags & 16) != 0, 0};
        models.push_back(m);
        if (!float8 || m.rounds) continue;
        for (m.kept = 11; m.kept <= 16; ++m.kept) models.push_back(m);
      }
    }
  }
  return models;
}

void fit(Type type, bool group) {
  std::printf("%s, %s\n", group ? "wgmma m64n8" : "mma.sync m16n8", kNames[static_cast<int>(type)]);
  print_known(type, group);
  const int count = is_float8(type) ? 2000 : 4000;
  std::vector<Test> tests = random_tests(count, type, 0, 0, 1);
  for (const auto& [spread, accumulator] :
       {std::pair{0.0, 4.0}, {3.0, 1.0}, {3.0, 64.0}, {6.0, 8.0}, {3.0, 0.0}}) {
    const auto more = random_tests(count, type, spread, accumulator, 2);
    tests.insert(tests.end(), more.begin(), more.end());
  }
  const std::vector<float> got = run(tests, type, group);
  std::vector<Terms> terms;
  for (const Test& t : tests) terms.push_back(terms_of(type, t));
  const int columns = columns_of(type);
  std::vector<std::pair<int, Model>> best;
  for (const Model& m : models_of(type)) {
    // A few tests tell which models explain nothing. Each stands for a stride of all kinds.
    int same = 0, seen = 0;
    for (std::size_t i = 0; i < tests.size(); i += 97, ++seen) {
      same += predict(terms[i], columns, m) == got[i];
    }
    if (2 * same < seen && best.size() > 3) continue;
    same = 0;
    for (std::size_t i = 0; i < tests.size(); ++i) same += predict(terms[i], columns, m) == got[i];
    best.push_back({same, m});
  }
  std::sort(best.begin(), best.end(),
            [](const auto& x, const auto& y) { return x.first > y.first; });
  for (int i = 0; i < 6; ++i) {
    std::printf("  %d of %zu: %s\n", best[i].first, tests.size(), text(best[i].second).c_str());
  }
  int shown = 0;
  for (std::size_t i = 0; i < tests.size() && shown < 6; ++i) {
    const float p = predict(terms[i], columns, best[0].second);
    if (p == got[i]) continue;
    ++shown;
    std::printf("  not explained, test %zu: got %a, predicted %a, c %a, products", i, got[i], p,
                tests[i].c);
    for (int k = 0; k < columns; ++k) std::printf(" %a", terms[i].products[k]);
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
    for (const Type type : kTypes) {
      if (group || !is_float8(type)) fit(type, group);
    }
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
