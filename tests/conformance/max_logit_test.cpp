// The largest score of each head where scores are not finite, rows see nothing, or the output is
// strided, by every algorithm. Random problems: the hint "maxlogit".
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
constexpr std::int64_t kKeys = 5, kHeads = 6, kStride = 3;

// Scores are the numbers of K, as Q is 1 and so is softmax_scale. The last key is hidden, and so is
// every key from the last head, and the last query is not in use.
constexpr float kScores[kHeads][kKeys] = {
    {1, kNaN, 2, 0, 100},
    {kInfinity, 1, 2, 0, 100},
    {-kInfinity, -kInfinity, -kInfinity, -kInfinity, 100},
    {-3, -1.5f, -kInfinity, -2, 100},
    {0.25f, -0.5f, 7, 3, 100},
    {1, 2, 3, 4, 100},
};
constexpr float kLargest[kHeads] = {kNaN, kNaN, -kInfinity, -1.5f, 7, -kInfinity};

struct Call {
  // turn: by how many places the visible keys are moved on.
  Call(std::int64_t queries, std::int64_t turn) : rows(queries) {
    q.assign(static_cast<std::size_t>(2 * queries * kHeads), 1);
    o.assign(q.size(), kNaN);
    for (std::size_t i = q.size() - kHeads; i < q.size(); ++i) q[i] = 1000;
    for (std::int64_t j = 0; j < kKeys; ++j) {
      const std::int64_t from = j + 1 == kKeys ? j : (j + turn) % (kKeys - 1);
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < kHeads; ++h) {
          // The first sequence has the scores less 10.
          const float score = kScores[h][from] - (b == 0 ? 10.0f : 0.0f);
          k[static_cast<std::size_t>((b * kKeys + j) * kHeads + h)] = score;
        }
      }
    }
    const expr::Symbols& symbols = expr::symbols();
    problem.mask = symbols.key < static_cast<std::int32_t>(kKeys - 1) &&
                   symbols.head < static_cast<std::int32_t>(kHeads - 1);
    problem.softmax_scale = 1;
    used[0] = static_cast<std::int32_t>(queries);
    used[1] = static_cast<std::int32_t>(queries - 1);
    inputs = {.q = tensor(q.data(), {2, queries, kHeads, 1}),
              .k = tensor(k.data(), {2, kKeys, kHeads, 1}),
              .v = tensor(v.data(), {2, kKeys, kHeads, 1})};
    inputs.seqused_q = tensor(used.data(), {2});
    outputs.o = tensor(o.data(), {2, queries, kHeads, 1});
    outputs.max_logit = tensor(logits.data(), {kHeads});
    outputs.max_logit.strides[0] = kStride;
  }

  void expect_largest() const {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const float want = i % kStride == 0 ? kLargest[i / kStride] : kUntouched;
      EXPECT_TRUE(logits[i] == want || (std::isnan(logits[i]) && std::isnan(want)))
          << "element " << i << " is " << logits[i] << ", expected " << want;
    }
  }

  static constexpr float kUntouched = 1234;
  std::int64_t rows;
  std::vector<float> q, o, logits = std::vector<float>(kHeads * kStride, kUntouched);
  std::vector<float> k = std::vector<float>(2 * kKeys * kHeads), v = k;
  std::vector<std::int32_t> used = {0, 0};
  Problem problem;
  Inputs inputs;
  Outputs outputs;
};

TEST(MaxLogit, IsTheLargestScoreOfRowsInUse) {
  for (const std::int64_t queries : {2, 70}) {  // few rows, and tiles
    for (std::int64_t turn = 0; turn < kKeys - 1; ++turn) {
      const auto run = [&](const PlanOptions& options, const Context& context,
                           const std::string& what) {
        SCOPED_TRACE(what + ", queries " + std::to_string(queries) + ", turn " +
                     std::to_string(turn));
        Call call(queries, turn);
        forward(call.problem, call.inputs, call.outputs, options, context);
        call.expect_largest();
      };
      run({.backend = Backend::reference}, {}, "reference");
      for (const InstructionSet isa : available_instruction_sets()) {
        Context context;
        context.isa = isa;
        for (const Algorithm algorithm : algorithms(Phase::forward)) {
          run({.backend = Backend::cpu, .algorithm = algorithm}, context,
              std::string(name(isa)) + ", " + std::string(name(algorithm)));
        }
      }
    }
  }
}

TEST(MaxLogit, IsWrittenWhereNothingIsThere) {
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    Call call(2, 0);
    for (Tensor* t : {&call.inputs.q, &call.inputs.k, &call.inputs.v, &call.outputs.o}) {
      t->shape[0] = 0;
    }
    call.inputs.seqused_q = {};
    forward(call.problem, call.inputs, call.outputs, {.backend = backend});
    for (std::size_t h = 0; h < kHeads; ++h) EXPECT_EQ(call.logits[h * kStride], -kInfinity);
  }
}

TEST(MaxLogit, IsNotMerged) {
  Call call(2, 0);
  std::vector<float> lse(2 * 2 * kHeads);
  call.outputs.lse = tensor(lse.data(), {2, kHeads, 2});
  try {
    merge({call.outputs}, call.outputs);
    FAIL() << "merged";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(error.what()).rfind("parts[0].max_logit is given", 0), 0u)
        << error.what();
  }
}

}  // namespace
}  // namespace attn::verify
