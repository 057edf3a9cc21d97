// Extra memory is O(seqlen): one head of 65,536 queries and keys at d = 64, beyond inputs and
// outputs. A window keeps the time short; what is packed and accumulated is that of the full
// problem. Sanitizers keep memory of their own, so they do not build this.
#include "command/memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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

class Memory : public ::testing::Test {
 protected:
  // Runs once to start code, then measures with an executor that keeps no memory yet. Returns MiB.
  static std::int64_t measure(const std::function<void(const Context& context)>& call) {
    call({.executor = make_thread_pool(0)});
    const Context fresh{.executor = make_thread_pool(0)};
    const auto bytes = command::peak_memory([&] { call(fresh); });
    EXPECT_TRUE(bytes.has_value()) << "this kernel does not tell the peak of resident memory";
    return bytes.value_or(0) / kMiB;
  }

  Data q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse = std::vector<float>(static_cast<std::size_t>(kLength), 0.0f);
  Inputs inputs{.q = q.tensor(), .k = k.tensor(), .v = v.tensor()};
  Outputs outputs{.o = o.tensor(), .lse = tensor(lse.data(), {1, 1, kLength})};
  Problem problem{.mask = window(255, 0)};
};

TEST_F(Memory, ForwardStaysUnder64MiB) {
  const std::int64_t mib =
      measure([&](const Context& context) { forward(problem, inputs, outputs, {}, context); });
  EXPECT_LT(mib, 64);
  // The packed keys alone are 32 MiB: a measurement far below has measured something else.
  EXPECT_GT(mib, 16);
  const Plan plan = make_plan(complete(problem, inputs), Phase::forward);
  EXPECT_LE(mib, plan.workspace_bytes / kMiB + 1) << to_string(plan);
}

TEST_F(Memory, BackwardStaysUnder256MiB) {
  forward(problem, inputs, outputs);
  const Gradients gradients{.dq = dq.tensor(), .dk = dk.tensor(), .dv = dv.tensor()};
  const std::int64_t mib = measure([&](const Context& context) {
    backward(problem, inputs, outputs, d_o.tensor(), gradients, {}, context);
  });
  EXPECT_LT(mib, 256);
  EXPECT_GT(mib, 64);
  const Plan plan = make_plan(complete(problem, inputs), Phase::backward);
  EXPECT_LE(mib, plan.workspace_bytes / kMiB + 1) << to_string(plan);
}

}  // namespace
}  // namespace attn
