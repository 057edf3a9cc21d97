// What a call costs the host, on a driver that does nothing: no memory, and no more calls of the
// driver than there are things to ask it for. Times are bench/gpu/call_cost.cpp's. Sanitizers have
// a malloc of their own, so they do not build this.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attn/dropout_mask.hpp"
#include "attn/mask.hpp"
#include "attn/matmul.hpp"
#include "attn/run.hpp"
#include "attn/softmax.hpp"
#include "cuda/device/params.cuh"
#include "cuda/driver/memory.hpp"
#include "cuda/support.hpp"
#include "cuda/temporary_folder.hpp"
#include "fake_driver/fake_driver.hpp"

namespace {

std::atomic<long> allocations{0};

}  // namespace

// glibc lets a program replace malloc; operator new calls this one too. The names are glibc's.
// NOLINTBEGIN(readability-identifier-naming,readability-inconsistent-declaration-parameter-name)
extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* malloc(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
// NOLINTEND(readability-identifier-naming,readability-inconsistent-declaration-parameter-name)

namespace attn::cuda {
namespace {

const Environment kNoCache("ATTN_CACHE_DIR", "");
const Environment kCompiler("ATTN_NVRTC", ATTN_FAKE_DRIVER);
constexpr Device kHopper{DeviceType::cuda, 0}, kAmpere{DeviceType::cuda, 1};

template <class Function>
Function* exported(const char* name) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Calls of each function, those that were not called left out.
using Calls = std::map<std::string, long>;

// What the last of three calls makes of the driver; it must not allocate.
Calls calls_of(const std::function<void()>& call) {
  constexpr const char* kNames[] = {
#define ATTN_NAME(name, symbol, parameters) #name,
      ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_NAME)
#undef ATTN_NAME
  };
  call();
  call();
  DriverCalls& counts = *exported<DriverCalls*()>("attn_fake_calls")();
  std::array<long, std::tuple_size_v<DriverCalls>> before{}, after{};
  std::copy(counts.begin(), counts.end(), before.begin());
  const long allocated = allocations;
  call();
  EXPECT_EQ(allocations - allocated, 0) << "allocations of a call";
  std::copy(counts.begin(), counts.end(), after.begin());
  Calls calls;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (after[i] != before[i]) calls[kNames[i]] = after[i] - before[i];
  }
  return calls;
}

// Tensors of one problem, cut from one allocation or each in its own.
class Data {
 public:
  explicit Data(const Problem& p, Device device = kHopper, bool one_allocation = false)
      : device_(device) {
    if (one_allocation) all_ = std::make_unique<DeviceBuffer>(device.index, std::size_t{1} << 26);
    inputs.q = rows(p.batch, p.seqlen_q, p.heads_q, p.head_dim, p.dtype);
    inputs.k = rows(p.batch, p.seqlen_k, p.heads_k, p.head_dim, p.dtype);
    inputs.v = rows(p.batch, p.seqlen_k, p.heads_k, p.head_dim_v, p.dtype);
    outputs.o = rows(p.batch, p.seqlen_q, p.heads_q, p.head_dim_v, p.dtype);
    outputs.lse = view({p.batch, p.heads_q, p.seqlen_q}, DType::f32);
    d_out.o = rows(p.batch, p.seqlen_q, p.heads_q, p.head_dim_v, p.dtype);
    gradients.dq = rows(p.batch, p.seqlen_q, p.heads_q, p.head_dim, p.dtype);
    gradients.dk = rows(p.batch, p.seqlen_k, p.heads_k, p.head_dim, p.dtype);
    gradients.dv = rows(p.batch, p.seqlen_k, p.heads_k, p.head_dim_v, p.dtype);
  }
  Tensor rows(std::int64_t batch, std::int64_t n, std::int64_t heads, std::int64_t d, DType dtype) {
    return view({batch, n, heads, d}, dtype);
  }
  Tensor view(std::initializer_list<std::int64_t> shape, DType dtype) {
    Tensor t = tensor(static_cast<void*>(nullptr), dtype, shape, device_);
    const std::size_t bytes = static_cast<std::size_t>(t.size()) * size_of(dtype);
    if (all_ == nullptr) {
      t.data = apart_.emplace_back(device_.index, bytes).data();
    } else {
      t.data = static_cast<std::byte*>(all_->data()) + used_;
      used_ += (bytes + 255) / 256 * 256;
    }
    return t;
  }
  Context context(const Plan& plan) {
    Context context;
    if (plan.workspace_bytes > 0) {
      context.workspace = view({plan.workspace_bytes}, DType::u8);
    }
    return context;
  }

  Inputs inputs;
  Outputs outputs;
  OutputGradients d_out;
  Gradients gradients;

 private:
  Device device_;
  std::unique_ptr<DeviceBuffer> all_;
  std::size_t used_ = 0;
  std::vector<DeviceBuffer> apart_;
};

class CallCost : public ::testing::Test {
 protected:
  CallCost() { *contexts = {fake_context(0)}; }
  ~CallCost() override {
    contexts->clear();
    fake->parameter_bytes = 0;
  }

  FakeDriver* fake = exported<FakeDriver*()>("attn_fake_driver")();
  std::vector<CUcontext>* contexts =
      exported<std::vector<CUcontext>*()>("attn_fake_contexts")();  // of this thread
};

Calls forward_calls(const Plan& plan, Data& data) {
  const Context context = data.context(plan);
  return calls_of([&] { forward(plan, data.inputs, data.outputs, context); });
}
Calls backward_calls(const Plan& plan, Data& data) {
  const Context context = data.context(plan);
  return calls_of(
      [&] { backward(plan, data.inputs, data.outputs, data.d_out, data.gradients, context); });
}

// Of every call: the context is looked at once, and each allocation.
Calls expected(long allocations_of_tensors, long launches) {
  return {{"cuCtxGetCurrent", 1},
          {"cuCtxGetDevice", 1},
          {"cuPointerGetAttributes", allocations_of_tensors},
          {"cuLaunchKernelEx", launches}};
}
Calls with_memset(Calls calls) { return calls["cuMemsetD32Async"] = 1, calls; }
Calls with_counter(Calls calls) {
  calls["cuStreamIsCapturing"] = calls["cuStreamGetId"] = 1;
  return calls;
}

Plan plan_of(const Problem& problem, Phase phase, Device device = kHopper) {
  return make_plan(problem, phase, {.device = device});
}

TEST_F(CallCost, Forward) {
  for (const char* descriptor : {"b1_n1_h8_d64_bf16", "b2_n64_h4_d128_causal_softcap30_bf16",
                                 "b1_n64_h2_d40_f32", "b1_n64_h2_d64_dropout0.1_alibi_f16"}) {
    Problem problem = parse_problem(descriptor);
    Data data(problem);
    long tensors = 5;
    if (!problem.score.empty()) {
      for (const auto& buffer : expr::buffers(problem.score)) {
        data.inputs.buffers.emplace_back(buffer->name(), data.view({problem.heads_q}, DType::f32));
        ++tensors;
      }
    }
    EXPECT_EQ(forward_calls(plan_of(problem, Phase::forward), data), expected(tensors, 1))
        << descriptor;
  }
}

TEST_F(CallCost, ForwardWhoseTilesAreDealt) {
  const Problem problem = parse_problem("b4_n1024_h16_d128_causal_bf16");
  Data data(problem);
  EXPECT_EQ(forward_calls(plan_of(problem, Phase::forward), data), with_counter(expected(5, 1)));
}

TEST_F(CallCost, DecodingInSplits) {
  const Problem problem = parse_problem("b1_sq1_sk8192_hq32_hk8_d128_bf16");
  const Plan plan = plan_of(problem, Phase::forward);
  ASSERT_GT(plan.num_splits, 1);
  Data data(problem);
  EXPECT_EQ(forward_calls(plan, data), expected(6, 2));
}

TEST_F(CallCost, Backward) {
  for (const char* descriptor :
       {"b1_n256_h8_d64_bf16", "b1_n256_h4_d128_causal_softcap30_dropout0.1_bf16"}) {
    const Problem problem = parse_problem(descriptor);
    Data data(problem);
    EXPECT_EQ(backward_calls(plan_of(problem, Phase::backward), data), expected(10, 4))
        << descriptor;
  }
  const Problem problem = parse_problem("b1_n64_h2_d40_f32");
  Data data(problem);
  EXPECT_EQ(backward_calls(plan_of(problem, Phase::backward), data), expected(10, 4));
}

TEST_F(CallCost, GradientsOfBuffers) {
  Problem problem = parse_problem("b1_n64_h2_d64_bf16");
  problem.score = attn::bias(tensor(static_cast<const void*>(nullptr), DType::f32, {1, 2, 64, 64}));
  Data data(problem);
  const std::string name = expr::buffers(problem.score).front()->name();
  data.inputs.buffers.emplace_back(name, data.view({1, 2, 64, 64}, DType::f32));
  data.gradients.buffers.emplace_back(name, data.view({1, 2, 64, 64}, DType::f32));
  // Beside dQ, dK and dV: LSE and D again, the elements, and rows that a bias puts far from 0.
  EXPECT_EQ(backward_calls(plan_of(problem, Phase::backward), data), with_memset(expected(12, 7)));
}

// A map of addresses that were not seen is encoded, and no other.
TEST_F(CallCost, MapsAreKept) {
  const Problem problem = parse_problem("b1_n256_h8_d64_bf16");
  const Plan plan = plan_of(problem, Phase::backward);
  Data data(problem), other(problem);
  const Context context = data.context(plan);
  int turn = 0;
  Data* const turns[] = {&data, &data, &other};
  const Calls calls = calls_of([&] {
    Data& d = *turns[turn++];
    backward(plan, {.q = d.inputs.q, .k = data.inputs.k, .v = data.inputs.v}, data.outputs, d.d_out,
             data.gradients, context);
  });
  Calls maps = expected(10, 4);
  maps["cuTensorMapEncodeTiled"] = 2;
  EXPECT_EQ(calls, maps);
}

TEST_F(CallCost, TensorsOfOneAllocation) {
  const Problem problem = parse_problem("b1_n256_h8_d64_bf16");
  Data data(problem, kHopper, true);
  EXPECT_EQ(forward_calls(plan_of(problem, Phase::forward), data), expected(1, 1));
  EXPECT_EQ(backward_calls(plan_of(problem, Phase::backward), data), expected(1, 4));
}

// What is one tensor's allocation says nothing of memory behind it.
TEST_F(CallCost, EveryAllocationIsLookedAt) {
  const Problem problem = parse_problem("b1_n256_h8_d64_bf16");
  Data data(problem), elsewhere(problem, kAmpere);
  const Plan plan = plan_of(problem, Phase::forward);
  const Context context = data.context(plan);
  forward(plan, data.inputs, data.outputs, context);
  data.inputs.v.data = elsewhere.inputs.v.data;
  expect_contains(refusal(ErrorCode::invalid_argument,
                          [&] { forward(plan, data.inputs, data.outputs, context); }),
                  "v is bf16[1, 256, 8, 64]");
}

// More parts, or a longer problem, than the workspace was counted for.
TEST_F(CallCost, PlansChangedByHandAreHeldToTheirWorkspace) {
  const Problem problem = parse_problem("b1_sq1_sk8192_hq32_hk8_d128_bf16");
  const Plan plan = plan_of(problem, Phase::forward);
  Data data(problem);
  const Context context = data.context(plan);
  const auto refused = [&](const Plan& changed) {
    return refusal(ErrorCode::invalid_argument,
                   [&] { forward(changed, data.inputs, data.outputs, context); });
  };
  Plan more = plan;
  ++more.num_splits;
  expect_contains(refused(more), "workspace_bytes of the plan is");
  Plan none = plan;
  none.num_splits = 0;
  expect_contains(refused(none), "num_splits of the plan is 0; accepted is 1 to 128");
  Plan fewer = plan;
  --fewer.num_splits;
  forward(fewer, data.inputs, data.outputs, context);
  // Also where the plan has run, so that what it keeps is there for copies.
  forward(plan, data.inputs, data.outputs, context);
  Plan smaller = plan;
  smaller.workspace_bytes = 0;
  expect_contains(refused(smaller), "workspace_bytes of the plan is 0");

  const Problem longer = parse_problem("b1_n512_h8_d64_bf16");
  Data rows(longer);
  Plan backward_plan = plan_of(parse_problem("b1_n256_h8_d64_bf16"), Phase::backward);
  const Context rows_context = rows.context(backward_plan);
  backward_plan.problem = longer;
  expect_contains(refusal(ErrorCode::invalid_argument,
                          [&] {
                            backward(backward_plan, rows.inputs, rows.outputs, rows.d_out,
                                     rows.gradients, rows_context);
                          }),
                  "workspace_bytes of the plan is");
}

// A context that is not current is made so once, whatever is launched.
TEST_F(CallCost, WithoutAContext) {
  contexts->clear();
  const Problem problem = parse_problem("b1_n256_h8_d64_bf16");
  Data data(problem);
  Calls calls = expected(10, 4);
  calls.erase("cuCtxGetDevice");
  calls["cuCtxPushCurrent"] = calls["cuCtxPopCurrent"] = 1;
  EXPECT_EQ(backward_calls(plan_of(problem, Phase::backward), data), calls);
  EXPECT_TRUE(contexts->empty());
}

// A call by problem finds the plan of an earlier one.
TEST_F(CallCost, ByProblem) {
  const Problem problem = parse_problem("b1_n256_h8_d64_causal_bf16");
  Data data(problem);
  EXPECT_EQ(calls_of([&] { forward(problem, data.inputs, data.outputs); }), expected(5, 1));
}

// Calls without a plan of attention find their kernel by what its source depends on: a second one
// prints no source, which would allocate.
TEST_F(CallCost, Softmax) {
  Data data(parse_problem("b1_n64_h2_d64_f32"));
  const Tensor x = data.view({32, 1000}, DType::f32), y = data.view({32, 1000}, DType::f32);
  const Tensor values = data.view({32, 5}, DType::f32), columns = data.view({32, 5}, DType::i32);
  EXPECT_EQ(calls_of([&] { softmax(x, y); }), expected(2, 1));
  EXPECT_EQ(calls_of([&] { softmax_top(x, values, columns); }), expected(3, 1));
  // Three passes, and rows that begin anywhere, are kernels of their own.
  const int compilations = fake->compilations;
  softmax(x, y, {}, SoftmaxAlgorithm::three_pass);
  softmax(data.view({32, 999}, DType::f32), data.view({32, 999}, DType::f32));
  EXPECT_EQ(fake->compilations, compilations + 2);
}

TEST_F(CallCost, DropoutMask) {
  const Problem problem = parse_problem("b1_n64_h2_d64_dropout0.5_seed3_bf16");
  Data data(problem);
  const Tensor kept = data.view({1, 2, 64, 64}, DType::u8);
  EXPECT_EQ(calls_of([&] { dropout_mask(problem, kept); }), expected(1, 1));
}

MatmulInputs operands(Data& data, const MatmulProblem& p) {
  return {.a = data.view({p.m, p.k}, p.dtype), .b = data.view({p.k, p.n}, p.dtype)};
}

TEST_F(CallCost, Products) {
  for (const char* rung :
       {"", "persistent/128x128", "split_k/64x64_s2", "pipelined", "ldmatrix", "vector_loads"}) {
    MatmulProblem p{.m = 256, .n = 192, .k = 128};
    p.dtype = p.output = std::string(rung) == "vector_loads" ? DType::f32 : DType::bf16;
    Data data(parse_problem("b1_n64_h2_d64_f32"));
    const MatmulInputs inputs = operands(data, p);
    const Tensor c = data.view({p.m, p.n}, p.output);
    const MatmulPlan plan = make_plan(p, {.device = kHopper, .rung = rung});
    EXPECT_EQ(calls_of([&] { matmul(plan, inputs, c); }), expected(3, 1)) << rung;
  }
}

// Another rung, or larger tiles, than the workspace was counted for.
TEST_F(CallCost, ProductsChangedByHandAreHeldToTheirWorkspace) {
  MatmulProblem p{.m = 256, .n = 192, .k = 128};
  p.dtype = p.output = DType::bf16;
  Data data(parse_problem("b1_n64_h2_d64_f32"));
  const MatmulInputs inputs = operands(data, p);
  const Tensor c = data.view({p.m, p.n}, p.output);
  const auto refused = [&](const MatmulPlan& changed) {
    const Context context{.workspace = data.view({changed.workspace_bytes + 1}, DType::u8)};
    return refusal(ErrorCode::invalid_argument, [&] { matmul(changed, inputs, c, context); });
  };
  MatmulPlan other = make_plan(p, {.device = kHopper, .rung = "persistent/128x128"});
  other.rung = "stream_k";
  expect_contains(refused(other), "workspace_bytes of the plan is 0; accepted is");
  MatmulPlan larger = make_plan(p, {.device = kHopper, .rung = "stream_k/64x64"});
  larger.block_n = 128;
  expect_contains(refused(larger), "workspace_bytes of the plan is");
}

// Threads whose first calls come together, of several kinds and on two devices.
TEST_F(CallCost, ProductsOfThreads) {
  fake->launches = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const Device device = i % 2 == 0 ? kHopper : kAmpere;
      Data data(parse_problem("b1_n64_h2_d64_f32"), device);
      MatmulProblem p{.m = 64, .n = 64, .k = 64 + 64 * (i / 4)};
      p.dtype = p.output = DType::f16;
      const MatmulInputs inputs = operands(data, p);
      const Tensor c = data.view({p.m, p.n}, p.output), x = data.view({8, 64}, DType::f32);
      for (int turn = 0; turn < 50; ++turn) {
        matmul(inputs, c, turn % 2 == 0 ? Activation::none : Activation::relu);
        softmax(x, x);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake->launches, 8 * 50 * 2);
}

// The first parameter of the last launch of a call.
template <class Parameters = device::ForwardParams>
Parameters parameters_of(FakeDriver& fake, const std::function<void()>& call) {
  fake.parameter_bytes = sizeof(Parameters);
  call();
  Parameters parameters{};
  std::memcpy(&parameters, fake.parameter.data(), sizeof(parameters));
  return parameters;
}

// Copies share what a plan keeps, so far as they are of the same problem.
TEST_F(CallCost, CopiesOfAPlan) {
  Problem problem = parse_problem("b1_n100_h8_d64_dropout0.5_seed3_bf16");
  const Plan plan = plan_of(problem, Phase::forward);
  Data data(problem);
  const Context context = data.context(plan);
  const auto run = [&](const Plan& p) {
    return parameters_of(*fake, [&] { forward(p, data.inputs, data.outputs, context); });
  };
  const device::ForwardParams first = run(plan);
  const int compilations = fake->compilations;
  Plan copy = plan;
  const device::ForwardParams again = run(copy);
  EXPECT_EQ(std::memcmp(&first, &again, sizeof(first)), 0);
  // A seed is a number of the call.
  copy.problem.dropout.seed = 4;
  const device::ForwardParams other = run(copy);
  EXPECT_NE(first.dropout_round_keys[0][0], other.dropout_round_keys[0][0]);
  EXPECT_EQ(fake->compilations, compilations);
  // So is none of these, and the copy is not served from what the plan keeps.
  copy.problem.softmax_scale = 0.5;
  EXPECT_EQ(run(copy).scale, 0.5F);
  copy.problem.dropout.probability = 0.25;
  EXPECT_EQ(run(copy).dropout_threshold, 8192U);
  EXPECT_EQ(run(plan).scale, first.scale);
}

// The kernel says what lies in a backward pass's workspace, whatever algorithm the plan names.
TEST_F(CallCost, BackwardPlansWithAnotherAlgorithm) {
  const Problem problem = parse_problem("b1_n64_h2_d40_f32");
  Data data(problem);
  for (const Algorithm algorithm : {Algorithm::standard, Algorithm::flash_attention}) {
    Plan plan = make_plan(problem, Phase::backward, {.algorithm = algorithm, .device = kHopper});
    const Context context = data.context(plan);
    const auto run = [&] {
      backward(plan, data.inputs, data.outputs, data.d_out, data.gradients, context);
    };
    const auto first = parameters_of<device::BackwardParams>(*fake, run);
    for (const Algorithm other : {Algorithm::flash_attention_2, Algorithm::standard}) {
      plan.algorithm = other;
      const auto again = parameters_of<device::BackwardParams>(*fake, run);
      EXPECT_EQ(std::memcmp(&first, &again, sizeof(first)), 0) << name(algorithm);
    }
  }
}

// Tensors of another kind get another kernel; the first is kept.
TEST_F(CallCost, KindsOfTensors) {
  const Problem problem = parse_problem("b1_n100_h8_d64_bf16");
  const Plan plan = plan_of(problem, Phase::forward);
  Data data(problem), odd(problem);
  for (Tensor* t : {&odd.inputs.q, &odd.inputs.k, &odd.inputs.v}) {
    t->data = static_cast<std::byte*>(t->data) + 2;
  }
  const auto threads_of = [&](const Data& d) {
    forward(plan, d.inputs, data.outputs, data.context(plan));
    return fake->launch.blockDimX;
  };
  const unsigned aligned = threads_of(data), unaligned = threads_of(odd);
  EXPECT_NE(aligned, unaligned);
  const int compilations = fake->compilations;
  EXPECT_EQ(threads_of(data), aligned);
  EXPECT_EQ(threads_of(odd), unaligned);
  EXPECT_EQ(fake->compilations, compilations);
}

// One plan runs in several threads, each of which may be its first; plans of two devices beside.
TEST_F(CallCost, Threads) {
  const Problem problem = parse_problem("b1_n96_h8_d64_causal_bf16");
  const std::array plans{plan_of(problem, Phase::forward),
                         plan_of(problem, Phase::forward, kAmpere)};
  std::vector<std::unique_ptr<Data>> data;
  for (int i = 0; i < 8; ++i) {
    data.push_back(std::make_unique<Data>(problem, i % 2 == 0 ? kHopper : kAmpere));
  }
  fake->launches = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < data.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 50; ++turn) {
        forward(plans[i % 2], data[i]->inputs, data[i]->outputs);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake->launches, 8 * 50);
}

}  // namespace
}  // namespace attn::cuda
