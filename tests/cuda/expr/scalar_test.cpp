// Scalars are parameters of kernels.
#include "attn/scalar.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "cuda/codegen/expression_pack.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/cuda.hpp"

namespace attn {
namespace {

// Kernels are kept by their text: another value needs no other kernel, and arrives with the bytes.
TEST(Scalar, ValuesAreNoText) {
  const auto& s = expr::symbols();
  const auto problem = [&](std::int32_t w, float x) {
    Problem p = parse_problem("b1_n512_h2_d64_bf16");
    p.mask = s.key <= s.query + expr::scalar("w", w);
    p.score = expr::scalar("x", x) * tanh(s.score);
    return p;
  };
  const Problem one = problem(3, 0.5F), other = problem(4, 0.5F), third = problem(3, 2);
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    for (const cuda::Arch arch : {cuda::Arch{80, false}, cuda::Arch{90, true}}) {
      const auto sources = cuda::sources(one, phase, arch);
      for (const Problem* p : {&other, &third}) {
        const auto again = cuda::sources(*p, phase, arch);
        ASSERT_EQ(sources.size(), again.size());
        for (std::size_t i = 0; i < sources.size(); ++i) EXPECT_EQ(sources[i].text, again[i].text);
      }
    }
  }
  const auto bytes = [](const Problem& p, const expr::Bindings& bindings) {
    return cuda::expression_pack(p.mask, p.score, 1, 0).packed(bindings);
  };
  EXPECT_NE(bytes(one, {}), bytes(other, {}));
  EXPECT_NE(bytes(one, {}), bytes(third, {}));
  const std::int32_t four = 4;
  EXPECT_EQ(bytes(one, {{"w", tensor(&four, {})}}), bytes(other, {}));
  EXPECT_FALSE(cuda::mask_reads_buffers(one.mask));
}

}  // namespace
}  // namespace attn
