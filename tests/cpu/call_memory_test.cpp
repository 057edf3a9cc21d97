// A call with a plan asks for no memory after its first run, whatever the problem, the algorithm
// and the number of workers; and nothing at all in a workspace of the caller's of exactly
// Plan::workspace_bytes. Sanitizers have a malloc of their own, so they do not build this.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "attn/error.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"
#include "verify/cases.hpp"
#include "verify/compare.hpp"
#include "verify/data.hpp"
#include "verify/matmul.hpp"

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

namespace attn::verify {
namespace {

template <class Call>
long allocations_of(const Call& call) {
  const long before = allocations;
  call();
  return allocations - before;
}

struct AlignedMemory {
  explicit AlignedMemory(std::int64_t size)
      : bytes(size),
        data(std::aligned_alloc(128, static_cast<std::size_t>((size + 127) / 128 * 128))) {}
  ~AlignedMemory() { std::free(data); }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;
  Tensor tensor() const { return attn::tensor(data, DType::u8, {bytes}); }

  std::int64_t bytes;
  void* data;
};

// One phase of one problem by one algorithm.
struct PlannedCall {
  CaseData& data;
  Plan plan;

  void operator()(const Context& context) const {
    if (plan.phase == Phase::forward) {
      forward(plan, data.inputs, data.outputs, context);
    } else {
      backward(plan, data.inputs, data.outputs, data.d_o, data.gradients, context);
    }
  }
};

class CallMemory : public ::testing::TestWithParam<const char*> {
 protected:
  // Calls visit(run) for every algorithm of both phases; backward runs find O and LSE written.
  template <class Visit>
  void for_each_run(CaseData& data, const Context& context, int threads, const Visit& visit) {
    forward(data.problem, data.inputs, data.outputs, {.backend = Backend::cpu}, context);
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      if (phase == Phase::backward && !has_backward(data.problem)) continue;
      std::vector<Algorithm> all = algorithms_for(data.problem.dtype, phase);
      all.push_back(Algorithm::automatic);  // which may be several, by length
      for (const Algorithm algorithm : all) {
        const PlanOptions options{
            .backend = Backend::cpu, .algorithm = algorithm, .threads = threads};
        const PlannedCall run{data, make_plan(data.problem, phase, options, context)};
        SCOPED_TRACE(to_string(run.plan));
        visit(run);
      }
    }
  }
};

TEST_P(CallMemory, NothingIsAllocatedAfterTheFirstRun) {
  CaseData data(parse_case(GetParam()), 3);
  for (const int threads : {1, 3}) {
    Context context{.executor = make_thread_pool(threads)};
    for_each_run(data, context, threads, [&](const PlannedCall& run) {
      run(context);
      EXPECT_EQ(allocations_of([&] { run(context); }), 0);
    });
  }
}

TEST_P(CallMemory, NothingIsAllocatedInAWorkspaceOfTheCaller) {
  CaseData data(parse_case(GetParam()), 3);
  for (const int threads : {1, 3}) {
    const Context context{.executor = make_thread_pool(threads)};
    for_each_run(data, context, threads, [&](const PlannedCall& run) {
      const AlignedMemory memory(run.plan.workspace_bytes);
      // An executor that keeps nothing yet.
      Context own{.executor = make_thread_pool(threads)};
      own.workspace = memory.tensor();
      EXPECT_EQ(allocations_of([&] { run(own); }), 0);
      own.workspace = attn::tensor(memory.data, DType::u8, {memory.bytes - 1});
      try {
        run(own);
        ADD_FAILURE() << "a workspace that is too small was taken";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("workspace has"), std::string::npos)
            << error.what();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, CallMemory,
    ::testing::Values("b1_n16_h1_d64_f32", "b2_sq100_sk700_hq6_hk2_d40_causal_bf16",
                      "b1_sq1_sk2000_hq8_hk2_d64_bf16", "b1_sq3_sk1500_h2_d64_paged16_f16",
                      "b3_sq150_sk170_hq4_hk2_d64_causal_packed_f16",
                      "b6_sq100_sk1100_hq8_hk2_d64_packedq_paged16_causal_dropout0.1_seed4_bf16/"
                      "cuq0,1,2,6,106,108,108",
                      "b5_sq1_sk170_sp700_hq4_hk2_d64_causal_sink_bf16",
                      "b4_sq40_sk60_sp300_h2_d40_packed_f32",
                      "b2_n150_h4_d64_softcap10_alibi_bias_sink_dropout0.2_seed3_f32/padded",
                      "b2_n300_h2_d32_window64x0_documents_bf16", "b1_n1200_h2_d64_dv32_f32",
                      "b1_n64_h2_d512_f16",
                      "b3_sq4_sk1100_hq36_hk9_d64_mask(head%2==0||key<=query)_bf16/padded",
                      "b2_sq100_sk700_hq6_hk2_d40_causal_f64", "b1_n600_h1_d64_dv32_f64",
                      "b2_n150_h4_d64_softcap10_alibi_bias_sink_dropout0.2_seed3_f64/padded"),
    [](const ::testing::TestParamInfo<const char*>& info) { return test_name(info.param); });

// A product without a plan finds that of the call before.
TEST(CallMemory, MatmulAllocatesNothingAfterTheFirstCall) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t m : {1, 40}) {
      MatmulData data({.m = m, .n = 200, .k = 96, .dtype = dtype, .output = dtype}, 3);
      const auto call = [&] { matmul(data.inputs, data.c, Activation::relu); };
      call();
      EXPECT_EQ(allocations_of(call), 0) << name(dtype) << " " << m;
    }
  }
}

// Calls at the same time on one executor have a block each: results stay what they are alone.
TEST(CallMemory, CallsAtTheSameTimeDoNotShareMemory) {
  const Case c = parse_case("b1_n200_h2_d64_causal_f32");
  const Context context{.executor = make_thread_pool(2)};
  CaseData alone(c, 5);
  forward(alone.problem, alone.inputs, alone.outputs, {}, context);
  std::vector<std::thread> callers;
  std::atomic<int> different{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      CaseData data(c, 5);
      for (int repeat = 0; repeat < 50; ++repeat) {
        data.poison();
        forward(data.problem, data.inputs, data.outputs, {}, context);
        if (!first_difference(data.outputs.o, alone.outputs.o).empty()) ++different;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace attn::verify
