// What a call on a GPU costs the host: nanoseconds until it returns, how often it asks for memory,
// and how often it calls the driver. One line a call: the median and the least of many. On the
// driver of the tests, which does nothing, the time is the library's own, but for a few nanoseconds
// a call of the driver; on a GPU it holds what the driver takes, and calls are not counted.
// Arguments: descriptors of dense or packed problems without buffers; without any also what has no
// plan of attention: products, softmax and dropout's mask.
//   g++ -std=c++20 -O2 -Iinclude -Isrc -Itests/cuda bench/gpu/call_cost.cpp build/libattn.a -lfmt
//     -lpthread -ldl -o call_cost
//   LD_LIBRARY_PATH=build/tests/cuda/fake_driver ATTN_CACHE_DIR=
//     ATTN_NVRTC=build/tests/cuda/fake_driver/libcuda.so.1 ./call_cost
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "cuda/driver/memory.hpp"
#include "fake_driver/host.hpp"

namespace {

std::atomic<long> allocations{0};

}  // namespace

// glibc lets a program replace malloc alone; operator new and the library call this one.
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* malloc(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}

namespace {

using attn::Tensor;
using attn::cuda::DeviceBuffer;
using attn::cuda::DriverCalls;
using Clock = std::chrono::steady_clock;

constexpr attn::Device kDevice{attn::DeviceType::cuda, 0};
constexpr int kCallsTogether = 20, kTimes = 5000;

// Null on a driver that does not count.
DriverCalls* driver_calls() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  auto* const get = reinterpret_cast<DriverCalls* (*)()>(dlsym(library, "attn_fake_calls"));
  return get != nullptr ? get() : nullptr;
}

std::string counted(const std::vector<long>& before, const DriverCalls& after) {
  constexpr const char* kNames[] = {
#define ATTN_NAME(name, symbol, parameters) #name,
      ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_NAME)
#undef ATTN_NAME
  };
  std::string text;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const long calls = after[i] - before[i];
    if (calls > 0) text += std::string(" ") + kNames[i] + " " + std::to_string(calls);
  }
  return text;
}

void measure(const std::string& what, const std::function<void()>& call) {
  static DriverCalls* const driver = driver_calls();
  for (int i = 0; i < 3; ++i) call();
  attn::cuda::synchronize(kDevice.index);
  std::vector<long> before;
  if (driver != nullptr) before.assign(driver->begin(), driver->end());
  const long asked = allocations;
  call();
  const long each = allocations - asked;
  const std::string functions = driver != nullptr ? counted(before, *driver) : "";
  std::vector<double> nanoseconds;
  for (int i = 0; i < kTimes; ++i) {
    const auto start = Clock::now();
    for (int j = 0; j < kCallsTogether; ++j) call();
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    nanoseconds.push_back(took.count() / kCallsTogether);
    if (driver == nullptr) attn::cuda::synchronize(kDevice.index);
  }
  std::sort(nanoseconds.begin(), nanoseconds.end());
  std::printf("%-72s %7.0f ns (least %7.0f), %2ld allocations;%s\n", what.c_str(),
              nanoseconds[nanoseconds.size() / 2], nanoseconds.front(), each, functions.c_str());
}

// Tensors of one problem in device memory.
class Data {
 public:
  explicit Data(const attn::Problem& p) {
    const auto q = [&](std::int64_t d) { return rows(p, p.layout_q, p.seqlen_q, p.heads_q, d); };
    const auto k = [&](std::int64_t d) { return rows(p, p.layout_k, p.seqlen_k, p.heads_k, d); };
    if (p.layout_q == attn::Layout::packed) inputs.cu_seqlens_q = integers(p.batch + 1);
    if (p.layout_k == attn::Layout::packed) inputs.cu_seqlens_k = integers(p.batch + 1);
    inputs.q = q(p.head_dim);
    inputs.k = k(p.head_dim);
    inputs.v = k(p.head_dim_v);
    outputs.o = q(p.head_dim_v);
    d_o = q(p.head_dim_v);
    gradients.dq = q(p.head_dim);
    gradients.dk = k(p.head_dim);
    gradients.dv = k(p.head_dim_v);
    const std::int64_t n = p.batch * p.seqlen_q;
    outputs.lse =
        p.layout_q == attn::Layout::packed
            ? attn::tensor(room(n * p.heads_q * 4), attn::DType::f32, {p.heads_q, n}, kDevice)
            : attn::tensor(room(n * p.heads_q * 4), attn::DType::f32,
                           {p.batch, p.heads_q, p.seqlen_q}, kDevice);
  }
  Tensor workspace(const attn::Plan& plan) {
    if (plan.workspace_bytes == 0) return {};
    return attn::tensor(room(plan.workspace_bytes), attn::DType::u8, {plan.workspace_bytes},
                        kDevice);
  }

  attn::Inputs inputs;
  attn::Outputs outputs;
  Tensor d_o;
  attn::Gradients gradients;

 private:
  void* room(std::int64_t bytes) {
    memory_.emplace_back(kDevice.index, static_cast<std::size_t>(bytes));
    return memory_.back().data();
  }
  Tensor rows(const attn::Problem& p, attn::Layout layout, std::int64_t n, std::int64_t heads,
              std::int64_t d) {
    void* const data = room(p.batch * n * heads * d * std::int64_t(attn::size_of(p.dtype)));
    if (layout == attn::Layout::packed) {
      return attn::tensor(data, p.dtype, {p.batch * n, heads, d}, kDevice);
    }
    return attn::tensor(data, p.dtype, {p.batch, n, heads, d}, kDevice);
  }
  Tensor integers(std::int64_t count) {
    return attn::tensor(room(count * 4), attn::DType::i32, {count}, kDevice);
  }

  std::vector<DeviceBuffer> memory_;
};

void measure_calls(const std::string& descriptor) {
  const attn::Problem problem = attn::parse_problem(descriptor);
  Data data(problem);
  attn::Context context;
  attn::PlanOptions options;
  options.device = kDevice;
  const attn::Plan plan = attn::make_plan(problem, attn::Phase::forward, options);
  context.workspace = data.workspace(plan);
  measure(descriptor + " forward(plan)",
          [&] { attn::forward(plan, data.inputs, data.outputs, context); });
  measure(descriptor + " forward(problem)",
          [&] { attn::forward(problem, data.inputs, data.outputs, {}, context); });
  if (problem.seqlen_q == 1) return;
  const attn::Plan back = attn::make_plan(problem, attn::Phase::backward, options);
  context.workspace = data.workspace(back);
  const attn::OutputGradients d_outputs{data.d_o};
  measure(descriptor + " backward(plan)", [&] {
    attn::backward(back, data.inputs, data.outputs, d_outputs, data.gradients, context);
  });
  measure(descriptor + " backward(problem)", [&] {
    attn::backward(problem, data.inputs, data.outputs, d_outputs, data.gradients, {}, context);
  });
}

// What has no plan of attention.
void measure_others() {
  std::vector<DeviceBuffer> memory;
  const auto view = [&](std::initializer_list<std::int64_t> shape, attn::DType dtype) {
    attn::Tensor t = attn::tensor(static_cast<void*>(nullptr), dtype, shape, kDevice);
    t.data =
        memory.emplace_back(kDevice.index, std::size_t(t.size()) * attn::size_of(dtype)).data();
    return t;
  };
  using enum attn::DType;
  const attn::MatmulInputs inputs{.a = view({1024, 1024}, bf16), .b = view({1024, 1024}, bf16)};
  const Tensor c = view({1024, 1024}, bf16);
  attn::MatmulOptions options;
  options.device = kDevice;
  const attn::MatmulPlan plan = attn::make_plan(attn::describe(inputs, c), options);
  measure("1024^3 bf16 matmul(plan)", [&] { attn::matmul(plan, inputs, c); });
  measure("1024^3 bf16 matmul(tensors)", [&] { attn::matmul(inputs, c); });
  const Tensor x = view({1024, 1000}, f32), values = view({1024, 5}, f32),
               columns = view({1024, 5}, i32);
  measure("softmax of 1024 x 1000", [&] { attn::softmax(x, x); });
  measure("softmax_top of 1024 x 1000, 5", [&] { attn::softmax_top(x, values, columns); });
  const attn::Problem problem = attn::parse_problem("b1_n128_h4_d64_dropout0.1_bf16");
  const Tensor kept = view({1, 4, 128, 128}, u8);
  measure("dropout_mask of 4 x 128 x 128", [&] { attn::dropout_mask(problem, kept); });
}

}  // namespace

int main(int count, char** words) {
  std::vector<std::string> descriptors(words + 1, words + count);
  if (descriptors.empty()) {
    descriptors = {"b1_sq1_sk1_h8_d64_bf16",
                   "b1_n1024_h8_d64_bf16",
                   "b4_n1024_h16_d128_causal_bf16",
                   "b4_n1024_h16_d128_causal_softcap30_dropout0.1_bf16",
                   "b4_n1024_h16_d128_causal_packed_bf16",
                   "b1_n1000_h4_d40_f32",
                   "b1_sq1_sk8192_hq32_hk8_d128_bf16"};
  }
  for (const std::string& descriptor : descriptors) measure_calls(descriptor);
  if (count == 1) measure_others();
  return 0;
}
