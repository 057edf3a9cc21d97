// Extra memory is O(seqlen): one head of 65,536 queries and keys at d = 64, beyond inputs and
// outputs. A window keeps the time short; what is packed and accumulated is that of the full
// problem. Sanitizers keep memory of their own, so they do not build this.
#include "command/memory.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <vector>

#include "attn/attn.hpp"

namespace attn {
namespace {

constexpr std::int64_t kLength = 65536;
constexpr std::int64_t kDim = 64;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Data {
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(kLength * kDim), 0.5f);
  Tensor tensor() { return attn::tensor(values.data(), {1, kLength, 1, kDim}); }
};

// Runs once to start code, then measures with an executor that keeps no memory yet. Returns MiB.
std::int64_t peak(const std::function<void(const Context& context)>& call) {
  call({.executor = make_thread_pool(0)});
  const Context fresh{.executor = make_thread_pool(0)};
  const auto bytes = command::peak_memory([&] { call(fresh); });
  EXPECT_TRUE(bytes.has_value()) << "this kernel does not tell the peak of resident memory";
  return bytes.value_or(0) / kMiB;
}

class Memory : public ::testing::Test {
 protected:
  Data q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse = std::vector<float>(static_cast<std::size_t>(kLength), 0.0f);
  Inputs inputs{.q = q.tensor(), .k = k.tensor(), .v = v.tensor()};
  Outputs outputs{.o = o.tensor(), .lse = tensor(lse.data(), {1, 1, kLength})};
  Problem problem{.mask = window(255, 0)};
};

TEST_F(Memory, ForwardStaysUnder64MiB) {
  const std::int64_t mib =
      peak([&](const Context& context) { forward(problem, inputs, outputs, {}, context); });
  EXPECT_LT(mib, 64);
  // The packed keys alone are 32 MiB: a measurement far below has measured something else.
  EXPECT_GT(mib, 16);
  const Plan plan = make_plan(complete(problem, inputs), Phase::forward);
  EXPECT_LE(mib, plan.workspace_bytes / kMiB + 1) << to_string(plan);
}

TEST_F(Memory, BackwardStaysUnder256MiB) {
  forward(problem, inputs, outputs);
  const Gradients gradients{.dq = dq.tensor(), .dk = dk.tensor(), .dv = dv.tensor()};
  const std::int64_t mib = peak([&](const Context& context) {
    backward(problem, inputs, outputs, d_o.tensor(), gradients, {}, context);
  });
  EXPECT_LT(mib, 256);
  EXPECT_GT(mib, 64);
  const Plan plan = make_plan(complete(problem, inputs), Phase::backward);
  EXPECT_LE(mib, plan.workspace_bytes / kMiB + 1) << to_string(plan);
}

// Two workers take sixteen heads one after the other, each in memory of its own: Q packed (4 MiB)
// and dQ (1 MiB) of two heads, not of those that make four tasks a worker.
TEST(MemoryOfBackward, IsThatOfTheHeadsAtWork) {
  constexpr std::int64_t kRows = 4096, kHeads = 16;
  std::vector<float> values(static_cast<std::size_t>(kRows * kHeads * kDim), 0.5f);
  std::vector<float> gradient[3] = {values, values, values};
  std::vector<float> o = values, sums(static_cast<std::size_t>(kRows * kHeads));
  const auto of = [&](std::vector<float>& x) { return tensor(x.data(), {1, kRows, kHeads, kDim}); };
  const Inputs inputs{.q = of(values), .k = of(values), .v = of(values)};
  const Outputs outputs{.o = of(o), .lse = tensor(sums.data(), {1, kHeads, kRows})};
  const Problem problem{.mask = window(255, 0)};
  forward(problem, inputs, outputs);
  const Gradients gradients{.dq = of(gradient[0]), .dk = of(gradient[1]), .dv = of(gradient[2])};
  const PlanOptions options{.threads = 2};
  const std::int64_t mib = peak([&](const Context& context) {
    backward(problem, inputs, outputs, of(values), gradients, options, context);
  });
  EXPECT_LT(mib, 18);
  EXPECT_GT(mib, 8);
  const Plan plan = make_plan(complete(problem, inputs), Phase::backward, options);
  EXPECT_LE(mib, plan.workspace_bytes / kMiB + 1) << to_string(plan);
  EXPECT_LT(plan.workspace_bytes / kMiB, 20) << to_string(plan);
}

// Six heads, whose keys are cut into three ranges: one worker takes all heads whole, two take four,
// three take three, and eight none.
TEST(MemoryOfBackward, HasNoPartInTheBits) {
  constexpr std::int64_t kRows = 1600, kHeads = 6, kWidth = 16;
  std::vector<float> values(static_cast<std::size_t>(kRows * kHeads * kWidth));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i * i % 10007));
  }
  std::vector<float> o = values, sums(static_cast<std::size_t>(kRows * kHeads)), first;
  const auto of = [&](float* x) { return tensor(x, {1, kRows, kHeads, kWidth}); };
  const Tensor x = of(values.data());
  const Inputs inputs{.q = x, .k = x, .v = x};
  const Outputs outputs{.o = of(o.data()), .lse = tensor(sums.data(), {1, kHeads, kRows})};
  const Problem problem{.mask = window(700, 0)};
  forward(problem, inputs, outputs);
  for (const int threads : {1, 2, 3, 8}) {
    std::vector<float> found(3 * values.size(), std::nanf(""));
    float* const at = found.data();
    const auto n = static_cast<std::ptrdiff_t>(values.size());
    const Gradients gradients{.dq = of(at), .dk = of(at + n), .dv = of(at + 2 * n)};
    const Plan plan = make_plan(complete(problem, inputs), Phase::backward, {.threads = threads});
    EXPECT_EQ(plan.num_splits, 3);
    backward(problem, inputs, outputs, x, gradients, {.threads = threads},
             {.executor = make_thread_pool(threads)});
    if (first.empty()) first = found;
    EXPECT_EQ(std::memcmp(first.data(), found.data(), found.size() * sizeof(float)), 0) << threads;
  }
}

// Ends the process: with 0 where the call runs in `mib` more than the process has, address space
// included.
[[noreturn]] void run_within(std::int64_t mib, const std::function<bool()>& call) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto limit = static_cast<rlim_t>(pages * 4096 + mib * kMiB);
  const rlimit both{limit, limit};
  setrlimit(RLIMIT_AS, &both);
  try {
    std::exit(call() ? 0 : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(2);
  }
}

// Ten million sequences without a query, all of the same key: 12.8 GB of partial results of rows
// that there are not.
TEST(MemoryOfDecoding, WithoutQueriesIsNone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr std::int64_t kBatch = 10'000'000;
  std::vector<float> row(8, 1.0f);
  Tensor none = tensor(row.data(), {1, 0, 1, 8}), k = tensor(row.data(), {1, 1, 1, 8});
  for (Tensor* t : {&none, &k}) {
    t->shape[0] = kBatch;
    t->strides[0] = 0;
  }
  const Inputs inputs{.q = none, .k = k, .v = k};
  for (const Algorithm algorithm : algorithms(Phase::forward)) {
    const PlanOptions options{.algorithm = algorithm, .threads = 1};
    const Plan plan = make_plan(complete({}, inputs), Phase::forward, options);
    EXPECT_EQ(plan.workspace_bytes, 0) << to_string(plan);
    EXPECT_EXIT(run_within(16,
                           [&] {
                             forward(plan, inputs, {.o = none});
                             return true;
                           }),
                ::testing::ExitedWithCode(0), "")
        << name(algorithm);
  }
}

// A million packed sequences, of which the last has a query: one partial result of 2 KB.
TEST(MemoryOfDecoding, FollowsTheRowsThatThereAre) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr std::int64_t kBatch = 1'000'000;
  std::vector<std::int32_t> starts(kBatch + 1, 0);
  starts.back() = 1;
  std::vector<float> row(512, 0.25f), o(512);
  const Tensor cu_seqlens = tensor(starts.data(), {kBatch + 1});
  const Tensor rows = tensor(row.data(), {1, 1, 512});
  const Inputs inputs{
      .q = rows, .k = rows, .v = rows, .cu_seqlens_q = cu_seqlens, .cu_seqlens_k = cu_seqlens};
  const Problem problem{
      .seqlen_q = 1, .seqlen_k = 1, .layout_q = Layout::packed, .layout_k = Layout::packed};
  EXPECT_EXIT(run_within(300,
                         [&] {
                           forward(problem, inputs, {.o = tensor(o.data(), {1, 1, 512})},
                                   {.algorithm = Algorithm::flash_decoding, .threads = 1});
                           return o == row;
                         }),
              ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace attn
