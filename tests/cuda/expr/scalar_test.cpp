// Scalars are parameters of kernels.
#include "attn/scalar.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/codegen/divisor.hpp"
#include "cuda/codegen/expression_pack.hpp"
#include "cuda/codegen/expression_text.hpp"
#include "cuda/cuda.hpp"

#define __device__
#define __forceinline__ inline
#include "expr/integer.cuh"
#undef __device__
#undef __forceinline__

namespace attn {
namespace {

// Device code that divides by a scalar, against division by the number.
bool divides_as_numbers(std::int32_t a, std::int32_t b) {
  const cuda::Divisor packed = cuda::divisor_of(b);
  device::Divisor divisor;
  static_assert(sizeof(divisor) == sizeof(packed));
  std::memcpy(&divisor, &packed, sizeof(packed));
  return device::attn_floor_div(a, divisor) == device::attn_floor_div(a, b) &&
         device::attn_floor_mod(a, divisor) == device::attn_floor_mod(a, b) &&
         device::attn_divides(divisor.multiples, a) == (device::attn_floor_mod(a, b) == 0);
}

TEST(Scalar, DividesAsItsValue) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(), kMost = -(kLeast + 1);
  std::vector<std::int32_t> ends{kLeast, kLeast + 1, kMost, kMost - 1};
  for (std::int32_t i = -70; i <= 70; ++i) ends.push_back(i);
  for (int bit = 6; bit < 31; ++bit) {
    for (const std::int32_t beside : {-1, 0, 1}) {
      ends.push_back((1 << bit) + beside);
      ends.push_back(-(1 << bit) + beside);
    }
  }
  for (const std::int32_t a : ends) {
    for (const std::int32_t b : ends) ASSERT_TRUE(divides_as_numbers(a, b)) << a << " / " << b;
  }
  // Numbers of all lengths, and dividends around multiples of the divisor.
  std::mt19937 random(1);
  const auto number = [&] {
    const auto bits = static_cast<std::int32_t>(random() >> random() % 32);
    return random() % 2 == 0 ? bits : ~bits;
  };
  for (int i = 0; i < 300'000; ++i) {
    const std::int32_t a = number(), b = number();
    ASSERT_TRUE(divides_as_numbers(a, b)) << a << " / " << b;
    if (b == 0 || b == -1) continue;
    const std::int32_t multiple = a / b * b;
    ASSERT_TRUE(divides_as_numbers(multiple, b)) << multiple << " / " << b;
    if (multiple == kLeast) continue;
    ASSERT_TRUE(divides_as_numbers(multiple - 1, b)) << multiple - 1 << " / " << b;
  }
}

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
}

// What q.k is multiplied by when a score is no more than that times a scalar, or over one.
float multiple_of_qk(const expr::Expr& score, double softmax_scale, float bound) {
  const auto bytes =
      cuda::expression_pack({}, score, softmax_scale, 0).packed({{"x", tensor(&bound, {})}});
  constexpr std::size_t kScalar = 8;  // what comes first
  float number = 0;
  std::memcpy(&number, bytes.data() + kScalar, sizeof(number));
  return number;
}

TEST(Scalar, MultipliesTheScoreByWhatIsPacked) {
  const auto& s = expr::symbols();
  const expr::Expr x = expr::scalar("x", 7.0F);
  EXPECT_EQ(multiple_of_qk(s.score * x, 0.25, 3), 0.75F);
  EXPECT_EQ(multiple_of_qk(x * s.score, 0.25, -3), -0.75F);
  EXPECT_EQ(multiple_of_qk(-(s.score / x), 0.25, 4), -0.0625F);
  EXPECT_EQ(multiple_of_qk(tanh(4.0F * s.score * x), 0.25, 3), 3.0F);
  // A finite scalar leaves a score of 0 what it is; another does not.
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(multiple_of_qk(tanh(4.0F * s.score * x), 1, -kMost), -kMost);
  EXPECT_EQ(multiple_of_qk(s.score / x, 8, 1 / kMost), kMost);
  EXPECT_EQ(multiple_of_qk(s.score * x, 1, kInfinity), kInfinity);
  EXPECT_EQ(multiple_of_qk(s.score / x, 1, 0), kInfinity);
  // The score's own function has one product left, that of q.k with the number.
  const std::string text = cuda::print_expressions({}, s.score * x);
  EXPECT_NE(text.find("float multiple_0;  // softmax_scale * 0x1p+0 * x"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace attn
