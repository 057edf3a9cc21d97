// What describes a call is still what it was after it was moved from: without its mask or its
// buffers it would describe another call, and that would run.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "attn/expr.hpp"
#include "attn/mask.hpp"
#include "attn/run.hpp"
#include "core/call.hpp"

namespace attn {
namespace {

// NOLINTBEGIN(bugprone-use-after-move,performance-move-const-arg): what is tested

// Two keys, whose values are 0 and 1, for one query at the first of them.
struct TwoKeys {
  std::array<float, 2> q{1, 1}, k{1, 1}, v{0, 1}, o{-1, -1};

  Inputs inputs() const {
    const auto view = [](const auto& x) { return tensor(x.data(), {1, 2, 1, 1}); };
    return {.q = view(q), .k = view(k), .v = view(v)};
  }
  float first(const Problem& problem, const Inputs& inputs) {
    forward(problem, inputs, {.o = tensor(o.data(), {1, 2, 1, 1})});
    return o[0];
  }
};

TEST(MovedFrom, AProblemKeepsItsMask) {
  TwoKeys call;
  Problem problem{.mask = causal()};
  const Problem moved = std::move(problem);
  EXPECT_EQ(call.first(problem, call.inputs()), 0);  // 0.5 of both keys
  EXPECT_EQ(call.first(moved, call.inputs()), 0);
}

TEST(MovedFrom, AProblemKeepsItsScore) {
  TwoKeys call;
  Problem problem{.score = expr::symbols().score - 1000 * expr::symbols().key};
  Problem other;
  other = std::move(problem);
  EXPECT_EQ(call.first(problem, call.inputs()), 0);
  EXPECT_EQ(call.first(other, call.inputs()), 0);
}

TEST(MovedFrom, InputsKeepTheirBuffers) {
  TwoKeys call;
  const std::array<float, 2> none{0, 0}, far{0, -1000};
  const expr::Buffer buffer("far", tensor(none.data(), {2}));
  const Problem problem{.score = expr::symbols().score + buffer[expr::symbols().key]};
  Inputs inputs = call.inputs();
  inputs.buffers = {{"far", tensor(far.data(), {2})}};
  const Inputs moved = std::move(inputs);
  EXPECT_EQ(call.first(problem, inputs), 0);  // with the buffer's own numbers 0.5
  EXPECT_EQ(call.first(problem, moved), 0);
}

TEST(MovedFrom, GradientsKeepTheirBuffers) {
  testing::Call call = testing::dense_call();
  Gradients moved = std::move(call.grad);
  call.forward();
  call.backward();
  const auto* gradient = static_cast<const float*>(moved.buffers.at(0).second.data);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(gradient[i], gradient[i]) << i << " was not written";
}

TEST(MovedFrom, ABufferKeepsItsNameAndMemory) {
  const auto bytes = std::make_shared<std::vector<float>>(2, 0.0f);
  expr::Buffer buffer("slopes", tensor(bytes->data(), {2}), bytes);
  const expr::Buffer moved = std::move(buffer);
  EXPECT_EQ(buffer.name(), "slopes");
  EXPECT_EQ(to_string(buffer[expr::symbols().key]), "slopes[key]");
  EXPECT_EQ(bytes.use_count(), 3);  // here and in both
}

TEST(MovedFrom, ABlockMaskKeepsItsBytes) {
  BlockMask mask(2, 2, 16, 16);
  mask.at(1, 0) = 1;
  const BlockMask moved = std::move(mask);
  EXPECT_EQ(mask.at(1, 0), 1);
  EXPECT_EQ(mask.density(), 0.25);
  EXPECT_TRUE(same(mask.mask(), moved.mask()));
}

// NOLINTEND(bugprone-use-after-move,performance-move-const-arg)

}  // namespace
}  // namespace attn
