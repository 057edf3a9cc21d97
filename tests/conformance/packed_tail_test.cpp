// Rows of packed tensors behind the last sequence, as of a buffer of tokens that is not full: they
// are read into no result, and are in results as rows past seqused are.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.hpp"
#include "conformance/support.hpp"

namespace attn::verify {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kTotal = 23, kUsed = 16, kHeads = 2, kDim = 8;
constexpr std::int64_t kRow = kHeads * kDim;
const std::vector<std::int32_t> kStarts = {0, 4, 4, kUsed};

// NaN from row kUsed on.
std::vector<float> rows_of_chance(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> x(kTotal * kRow, kNaN);
  for (std::int64_t i = 0; i < kUsed * kRow; ++i) {
    x[static_cast<std::size_t>(i)] = static_cast<float>(random() % 1000) / 500 - 1;
  }
  return x;
}

Tensor packed(std::vector<float>& x) { return tensor(x.data(), {kTotal, kHeads, kDim}); }

void expect_zero_tail(const std::vector<float>& x, const std::string& what) {
  for (std::int64_t i = 0; i < kTotal * kRow; ++i) {
    const float value = x[static_cast<std::size_t>(i)];
    if (i >= kUsed * kRow) {
      ASSERT_EQ(value, 0) << what << ", element " << i;
    } else {
      ASSERT_TRUE(std::isfinite(value)) << what << ", element " << i;
    }
  }
}

TEST(PackedTail, IsZeroInEveryResult) {
  std::vector<float> q = rows_of_chance(1), k = rows_of_chance(2), v = rows_of_chance(3),
                     d_o = rows_of_chance(4);
  std::vector<std::int32_t> starts = kStarts;
  Inputs inputs{.q = packed(q), .k = packed(k), .v = packed(v)};
  inputs.cu_seqlens_q = inputs.cu_seqlens_k = tensor(starts.data(), {4});
  Problem described{.mask = causal()};
  described.layout_q = described.layout_k = Layout::packed;
  const Problem problem = complete(described, inputs);
  const auto check = [&](const PlanOptions& forward_options, const PlanOptions& backward_options,
                         const Context& context, const std::string& what) {
    std::vector<float> o(q.size(), kNaN), dq(o), dk(o), dv(o), lse(kHeads * kTotal, kNaN);
    const Outputs outputs{.o = packed(o), .lse = tensor(lse.data(), {kHeads, kTotal})};
    const Gradients gradients{.dq = packed(dq), .dk = packed(dk), .dv = packed(dv)};
    forward(problem, inputs, outputs, forward_options, context);
    backward(problem, inputs, outputs, packed(d_o), gradients, backward_options, context);
    expect_zero_tail(o, what + ": o");
    expect_zero_tail(dq, what + ": dq");
    expect_zero_tail(dk, what + ": dk");
    expect_zero_tail(dv, what + ": dv");
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kTotal; ++i) {
        const float value = lse[static_cast<std::size_t>(h * kTotal + i)];
        EXPECT_EQ(std::isinf(value), i >= kUsed) << what << ": lse, row " << i;
        EXPECT_FALSE(std::isnan(value)) << what << ": lse, row " << i;
      }
    }
  };
  check({.backend = Backend::reference}, {.backend = Backend::reference}, {}, "reference");
  const std::vector<Algorithm> backward = algorithms(Phase::backward);
  std::size_t turn = 0;
  for (const InstructionSet isa : available_instruction_sets()) {
    for (const Algorithm algorithm : algorithms(Phase::forward)) {
      Context context;
      context.isa = isa;
      check({.backend = Backend::cpu, .algorithm = algorithm},
            {.backend = Backend::cpu, .algorithm = backward[turn++ % backward.size()]}, context,
            std::string(name(algorithm)) + ", " + std::string(name(isa)));
    }
  }
}

// Behind a shared prefix, whose keys might be read by all rows at once.
TEST(PackedTail, IsNotInTheLargestScore) {
  constexpr std::int64_t kPrefix = 200;
  std::vector<float> q = rows_of_chance(1), k = rows_of_chance(2), v = rows_of_chance(3);
  std::vector<float> prefix(kPrefix * kRow);
  for (std::size_t i = 0; i < prefix.size(); ++i) prefix[i] = k[i % (kUsed * kRow)];
  std::vector<std::int32_t> starts = kStarts;
  Inputs inputs{.q = packed(q), .k = packed(k), .v = packed(v)};
  inputs.prefix_k = inputs.prefix_v = tensor(prefix.data(), {kPrefix, kHeads, kDim});
  inputs.cu_seqlens_q = inputs.cu_seqlens_k = tensor(starts.data(), {4});
  Problem described;
  described.layout_q = described.layout_k = Layout::packed;
  described.seqlen_prefix = kPrefix;
  const Problem problem = complete(described, inputs);
  std::vector<float> logits[2];
  for (const Backend backend : {Backend::reference, Backend::cpu}) {
    std::vector<float> o(q.size(), kNaN);
    std::vector<float>& to = logits[backend == Backend::cpu ? 1 : 0];
    to.assign(kHeads, kNaN);
    Outputs outputs{.o = packed(o)};
    outputs.max_logit = tensor(to.data(), {kHeads});
    forward(problem, inputs, outputs, {.backend = backend});
    expect_zero_tail(o, std::string(name(backend)));
  }
  for (std::size_t h = 0; h < kHeads; ++h) {
    EXPECT_NEAR(logits[0][h], logits[1][h], 1e-5) << "head " << h;
  }
}

}  // namespace
}  // namespace attn::verify
