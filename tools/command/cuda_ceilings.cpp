#include "command/cuda_ceilings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "cuda/driver/memory.hpp"
#include "cuda/jit/kernel.hpp"

namespace attn::command {
namespace {

constexpr int kSamples = 9;

// Median seconds of work that is put into a stream, after a first time that does not count.
double median_seconds(int device, const std::function<void(void* stream)>& work) {
  const cuda::Stream stream(device);
  cuda::Event start(device);
  cuda::Event end(device);
  std::vector<double> seconds;
  for (int i = 0; i <= kSamples; ++i) {
    start.record(stream.handle());
    work(stream.handle());
    end.record(stream.handle());
    end.synchronize();
    if (i > 0) seconds.push_back(cuda::seconds_between(start, end));
  }
  std::nth_element(seconds.begin(), seconds.begin() + kSamples / 2, seconds.end());
  return seconds[kSamples / 2];
}

// What a kernel multiplies: the name of the type in PTX, and how deep an instruction is, 32 bytes.
struct Operands {
  std::string_view type;
  int depth;
  bool transposable;  // wgmma says of 16-bit operands alone how they lie
};
Operands operands_of(DType dtype) {
  if (dtype == DType::u8) return {.type = "e4m3", .depth = 32, .transposable = false};
  return {.type = dtype == DType::f16 ? "f16" : "bf16", .depth = 16, .transposable = true};
}

// 32 bits of elements of random sign and fraction: of magnitude about 1 in both 16-bit types, from
// 1 to 2 in e4m3, none of them NaN.
std::string random_word_text(const Operands& x) {
  return fmt::format(
      R"(
__device__ __forceinline__ unsigned random_word(unsigned i) {{
  unsigned x = i * 2654435761u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return {};
}}
)",
      x.transposable ? "(x & 0x807f807fu) | 0x3f003f00u" : "(x & 0x87878787u) | 0x38383838u");
}

// A [64 x 128 bytes] and B [256 x 128 bytes] in shared memory, 128-byte swizzled rows; two
// warpgroups multiply them over and over, 16 products between waits, and the other warpgroup
// meanwhile.
std::string wgmma_text(const Operands& x) {
  std::string numbers;
  std::string operands;
  for (int i = 0; i < 128; ++i) {
    numbers += fmt::format("{}%{}", i > 0 ? ", " : "", i);
    operands += fmt::format("{}\"+f\"(d[{}])", i > 0 ? ", " : "", i);
  }
  return fmt::format(R"({}
extern "C" __global__ void __launch_bounds__(256) matrix_rate(float* out, int iterations) {{
  __shared__ alignas(1024) unsigned words[10240];
  for (unsigned i = threadIdx.x; i < 10240; i += 256) words[i] = random_word(i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(words));
  const unsigned long long form = 1ull << 62 | 64ull << 32;
  const unsigned long long a = form | (base & 0x3ffff) >> 4;
  const unsigned long long b = form | ((base + 8192) & 0x3ffff) >> 4;
  float d[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) d[i] = 0;
#pragma unroll 1
  for (int n = 0; n < iterations; ++n) {{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 16; ++k) {{
      asm volatile("wgmma.mma_async.sync.aligned.m64n256k{}.f32.{}.{} {{{}}}, %128, %129, 1, 1, 1"
                   "{};" : {} : "l"(a + k % 4 * 2), "l"(b + k % 4 * 2));
    }}
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }}
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += d[i];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}}
)",
                     random_word_text(x), x.depth, x.type, x.type, numbers,
                     x.transposable ? ", 0, 0" : "", operands);
}

// Eight independent sums of 16 x 8 a warp.
std::string mma_text(const Operands& x) {
  return fmt::format(R"({}
extern "C" __global__ void __launch_bounds__(256) matrix_rate(float* out, int iterations) {{
  unsigned a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = random_word(threadIdx.x * 6 + i);
  for (int i = 0; i < 2; ++i) b[i] = random_word(threadIdx.x * 6 + 4 + i);
  float d[8][4] = {{}};
#pragma unroll 1
  for (int n = 0; n < iterations; ++n) {{
#pragma unroll
    for (int i = 0; i < 8; ++i) {{
      asm volatile("mma.sync.aligned.m16n8k{}.row.col.f32.{}.{}.f32 {{%0, %1, %2, %3}}, {{%4, %5, "
                   "%6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
                   : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }}
  }}
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}}
)",
                     random_word_text(x), x.depth, x.type, x.type);
}

constexpr const char* kFmaText = R"(
extern "C" __global__ void __launch_bounds__(256) matrix_rate(float* out, int iterations) {
  float d[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) d[i] = threadIdx.x + i;
  const float a = 0.5f + threadIdx.x * 1e-3f, b = 1 - threadIdx.x * 1e-3f;
#pragma unroll 1
  for (int n = 0; n < iterations; ++n) {
#pragma unroll
    for (int i = 0; i < 16; ++i) d[i] = fmaf(d[i], a, b);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += d[i];
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
)";

double measure_gflops(DType dtype, int device, const Context& context) {
  const cuda::DeviceInfo& info = cuda::device_info(device);
  const MatrixRate rate = matrix_rate_kernel(dtype, info.arch);
  const auto kernel = cuda::get_kernel(device, rate.source, context);
  const unsigned blocks = static_cast<unsigned>(info.sm_count) * rate.blocks_per_sm;
  const cuda::DeviceBuffer out(device, std::size_t{blocks} * rate.threads * sizeof(float));
  void* pointer = out.data();
  const auto seconds_of = [&](int iterations) {
    void* arguments[] = {&pointer, &iterations};
    return median_seconds(device, [&](void* stream) {
      kernel->launch({.grid = {blocks, 1, 1}, .block = rate.threads}, stream, arguments);
    });
  };
  // Long enough for the clocks to settle: about 50 ms.
  constexpr int kFew = 1000;
  constexpr double kSeconds = 0.05;
  const int iterations =
      static_cast<int>(std::clamp(kFew * kSeconds / std::max(seconds_of(kFew), 1e-6), 1e3, 1e8));
  return rate.flops_per_block * blocks * iterations / seconds_of(iterations) * 1e-9;
}

double measure_gbps(int device) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // far beyond any L2
  const auto bytes =
      static_cast<std::size_t>(std::min(kMost, cuda::device_info(device).memory_bytes / 8));
  const cuda::DeviceBuffer from(device, bytes);
  const cuda::DeviceBuffer to(device, bytes);
  const cuda::ContextGuard guard(device);
  const double seconds = median_seconds(device, [&](void* stream) {
    cuda::check(cuda::api().cuMemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(to.data()),
                                          reinterpret_cast<cuda::CUdeviceptr>(from.data()), bytes,
                                          static_cast<cuda::CUstream>(stream)),
                "cuMemcpyAsync on the device");
  });
  return 2 * static_cast<double>(bytes) / seconds * 1e-9;
}

}  // namespace

MatrixRate matrix_rate_kernel(DType dtype, int capability) {
  const Operands operands = operands_of(dtype);
  MatrixRate rate;
  rate.source = {.name = "matrix_rate", .text = {}, .entry = "matrix_rate", .options = {}};
  if (dtype == DType::f32) {
    rate.source.text = kFmaText;
    rate.blocks_per_sm = 8;
    rate.flops_per_block = 256.0 * 16 * 2;
  } else if (capability == 90) {
    rate.source.text = wgmma_text(operands);
    rate.flops_per_block = 2.0 * 16 * 2 * 64 * 256 * operands.depth;
  } else {
    rate.source.text = mma_text(operands);
    rate.blocks_per_sm = 2;
    rate.flops_per_block = 8.0 * 8 * 2 * 16 * 8 * operands.depth;
  }
  return rate;
}

double CudaCeilings::gflops(DType dtype, int device, const Context& context) {
  constexpr int kFloat8 = 89;  // the first capability whose tensor cores take 8-bit floats
  if (dtype == DType::u8 && cuda::device_info(device).arch < kFloat8) return 0;
  const auto [at, added] = gflops_.try_emplace({dtype, device});
  if (added) at->second = measure_gflops(dtype, device, context);
  return at->second;
}

double CudaCeilings::gbps(int device) {
  const auto [at, added] = gbps_.try_emplace(device);
  if (added) at->second = measure_gbps(device);
  return at->second;
}

}  // namespace attn::command
