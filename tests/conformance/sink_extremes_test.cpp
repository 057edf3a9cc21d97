// A sink of any value beside rows that see keys and rows that see none, forward and backward, on
// the CPU as in the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "conformance/support.hpp"

namespace attn::verify {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kQueries = 6, kKeys = 3, kHeads = 2, kDim = 4;
constexpr std::int64_t kBlind = kQueries - kKeys;  // the first queries see no key

// The tensors of one head whose sink is `value` beside one whose sink is 0.5.
template <class T>
struct CallOf {
  explicit CallOf(float value) : sink{value, 0.5f} {
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
    for (std::size_t i = 0; i < k.size(); ++i) k[i] = 0.25f * static_cast<float>(i % 5) - 0.5f;
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.25f * static_cast<float>(i % 3) - 0.5f;
    problem.mask = causal();
    problem.sink = true;
    inputs = {.q = tensor(q.data(), {1, kQueries, kHeads, kDim}),
              .k = tensor(k.data(), {1, kKeys, kHeads, kDim}),
              .v = tensor(v.data(), {1, kKeys, kHeads, kDim})};
    inputs.sink = tensor(sink.data(), {kHeads});
    outputs = {.o = tensor(o.data(), {1, kQueries, kHeads, kDim}),
               .lse = tensor(lse.data(), {1, kHeads, kQueries})};
  }
  void run(const PlanOptions& options, Algorithm backward_algorithm, const Context& context) {
    forward(problem, inputs, outputs, options, context);
    const OutputGradients d_outputs(tensor(d_o.data(), {1, kQueries, kHeads, kDim}),
                                    tensor(d_lse.data(), {1, kHeads, kQueries}));
    backward(problem, inputs, outputs, d_outputs,
             {.dq = tensor(dq.data(), {1, kQueries, kHeads, kDim}),
              .dk = tensor(dk.data(), {1, kKeys, kHeads, kDim}),
              .dv = tensor(dv.data(), {1, kKeys, kHeads, kDim}),
              .dsink = tensor(dsink.data(), {kHeads})},
             {.backend = options.backend, .algorithm = backward_algorithm}, context);
  }
  T element(const std::vector<T>& x, std::int64_t row, std::int64_t head, std::int64_t c) const {
    return x[static_cast<std::size_t>((row * kHeads + head) * kDim + c)];
  }

  std::vector<T> q = std::vector<T>(kQueries * kHeads * kDim), o = q, dq = q;
  std::vector<T> d_o = std::vector<T>(kQueries * kHeads * kDim, 0.5f);
  std::vector<T> k = std::vector<T>(kKeys * kHeads * kDim), v = k, dk = k, dv = k;
  std::vector<float> sink;
  std::vector<T> lse = std::vector<T>(kHeads * kQueries, kNaN),
                 d_lse = std::vector<T>(kHeads * kQueries, 0.25f);
  std::vector<float> dsink = {kNaN, kNaN};
  Problem problem;
  Inputs inputs;
  Outputs outputs;
};
using Call = CallOf<float>;

void expect_as_promised(const Call& call, float sink) {
  const bool finite = std::isfinite(sink) || sink < 0;
  for (std::int64_t row = 0; row < kQueries; ++row) {
    const float lse = call.lse[static_cast<std::size_t>(row)];
    for (std::int64_t c = 0; c < kDim; ++c) {
      const float o = call.element(call.o, row, 0, c), dq = call.element(call.dq, row, 0, c);
      if (row < kBlind) {
        EXPECT_EQ(o, 0) << "row " << row;
        EXPECT_EQ(dq, 0) << "row " << row;
      } else {
        EXPECT_EQ(std::isnan(o), !finite) << "row " << row;
        EXPECT_EQ(std::isnan(dq), !finite) << "row " << row;
      }
      EXPECT_FALSE(std::isnan(call.element(call.o, row, 1, c))) << "the other head";
      EXPECT_FALSE(std::isnan(call.element(call.dq, row, 1, c))) << "the other head";
    }
    if (row < kBlind) {
      EXPECT_TRUE(lse == sink || (std::isnan(lse) && std::isnan(sink))) << lse << " of " << sink;
    } else {
      EXPECT_EQ(std::isnan(lse), !finite) << "row " << row;
    }
  }
  EXPECT_EQ(std::isnan(call.dsink[0]), !finite);
  EXPECT_FALSE(std::isnan(call.dsink[1]));
  for (std::int64_t row = 0; row < kKeys; ++row) {
    EXPECT_FALSE(std::isnan(call.element(call.dk, row, 1, 0))) << "the other head";
    EXPECT_FALSE(std::isnan(call.element(call.dv, row, 1, 0))) << "the other head";
  }
}

template <class Check>
void for_every_algorithm(float sink, const Check& check) {
  const auto run = [&](const PlanOptions& options, Algorithm backward, const Context& context,
                       const std::string& what) {
    SCOPED_TRACE("sink " + std::to_string(sink) + ", " + what);
    Call call(sink);
    check(call, options, backward, context);
  };
  run({.backend = Backend::reference}, Algorithm::automatic, {}, "reference");
  const std::vector<Algorithm> backward = algorithms(Phase::backward);
  std::size_t turn = 0;
  for (const InstructionSet isa : available_instruction_sets()) {
    Context context;
    context.isa = isa;
    for (const Algorithm algorithm : algorithms(Phase::forward)) {
      run({.backend = Backend::cpu, .algorithm = algorithm}, backward[turn++ % backward.size()],
          context, std::string(name(isa)) + ", " + std::string(name(algorithm)));
    }
  }
}

TEST(SinkExtremes, DoNotReachRowsThatSeeNoKey) {
  for (const float sink : {kInfinity, kNaN, -kInfinity, 3e38f, -3e38f, 1.5f}) {
    for_every_algorithm(sink, [&](Call& call, const PlanOptions& options, Algorithm backward,
                                  const Context& context) {
      call.run(options, backward, context);
      expect_as_promised(call, sink);
    });
  }
}

// P of the sink is 1 where nothing else is seen, so dsink is what d_lse adds up to.
TEST(SinkExtremes, GradientOfASinkThatStandsAlone) {
  for (const float sink : {kInfinity, kNaN, 3e38f, 1.5f}) {
    for_every_algorithm(sink, [&](Call& call, const PlanOptions& options, Algorithm backward,
                                  const Context& context) {
      call.problem.mask = expr::symbols().key < 0;
      call.run(options, backward, context);
      for (const float d : call.dsink) EXPECT_EQ(d, 0.25f * kQueries);
      for (const float d : call.dk) EXPECT_EQ(d, 0);
    });
  }
}

TEST(SinkExtremes, GradientOfASinkThatStandsAloneInDouble) {
  for (const float sink : {kInfinity, kNaN, 3e38f, 1.5f}) {
    for (const Backend backend : {Backend::reference, Backend::cpu}) {
      CallOf<double> call(sink);
      call.problem.mask = expr::symbols().key < 0;
      call.run({.backend = backend}, Algorithm::automatic, {});
      for (const float d : call.dsink) EXPECT_EQ(d, 0.25f * kQueries) << sink;
      for (const double d : call.dk) EXPECT_EQ(d, 0) << sink;
    }
  }
}

}  // namespace
}  // namespace attn::verify
