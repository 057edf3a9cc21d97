// Sums as tensor cores add them, by what an H200 computed (bench/gpu/tensor_core_sums.cu), and the
// yardstick that knows them.
#include "reference/tensor_core.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "conformance/support.hpp"
#include "reference/reference.hpp"
#include "reference/tensor_core_sums.hpp"
#include "verify/data.hpp"
#include "verify/expectation.hpp"

namespace attn::verify {
namespace {

using reference::Precision;
using reference::tensor_core_sum;

float one_and_eight(float x) {
  std::array<float, 16> a{}, b{};
  for (std::size_t k = 0; k < 8; ++k) {
    a[k] = 0x1p-10F;
    b[k] = x * 0x1p+10F;
  }
  return tensor_core_sum(1, a.data(), b.data(), 16);
}

// What is below 2^-25 of the largest exponent adds nothing, however many there are of it.
TEST(TensorCoreSum, TermsAreCutOff) {
  for (const float sign : {1.0F, -1.0F}) {
    for (int e = 21; e <= 25; ++e) {
      const float x = std::ldexp(sign, -e);
      EXPECT_EQ(one_and_eight(x), 1 + 8 * x) << e;
    }
    for (int e = 26; e <= 28; ++e) EXPECT_EQ(one_and_eight(std::ldexp(sign, -e)), 1) << e;
  }
}

// 1.5 * 1.5 has the exponent of its factors, 0, as far as terms are aligned: 2^-25 is not cut off.
TEST(TensorCoreSum, TheExponentOfAProductIsTheSumOfThoseOfItsFactors) {
  const std::array<float, 5> a{1.5F, 0x1p-12F, 0x1p-12F, 0x1p-12F, 0x1p-12F};
  const std::array<float, 5> b{1.5F, 0x1p-13F, 0x1p-13F, 0x1p-13F, 0x1p-13F};
  EXPECT_EQ(tensor_core_sum(0, a.data(), b.data(), 1), 2.25F);
  // 2.25 + 4 * 2^-25 = 2.25 + 2^-23, half a unit in the last place, is cut to 2.25; with twice as
  // much there is a unit.
  EXPECT_EQ(tensor_core_sum(0, a.data(), b.data(), 5), 2.25F);
  std::array<float, 9> c{}, d{};
  c.fill(0x1p-12F);
  d.fill(0x1p-13F);
  c[0] = d[0] = 1.5F;
  EXPECT_EQ(tensor_core_sum(0, c.data(), d.data(), 9), 2.25F + 0x1p-22F);
}

TEST(TensorCoreSum, SumsAreCutTowardsZero) {
  const float a = 0x1.fffffep-1F, b = 1;  // 1 + (1 - 2^-24) lies half way between two floats
  EXPECT_EQ(tensor_core_sum(1, &a, &b, 1), 0x1.fffffep+0F);
  const float minus = -a;
  EXPECT_EQ(tensor_core_sum(-1, &minus, &b, 1), -0x1.fffffep+0F);
}

// Numbers of one kind for the terms of a sum: any bits, near exponents, subnormal ones and zeros,
// terms that cancel, all exponents and zeros, the largest products, and some that are infinite or
// NaN.
float number_of_kind(int kind, std::mt19937& random) {
  const auto of = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  const auto bits = static_cast<std::uint32_t>(random());
  const std::uint32_t other = static_cast<std::uint32_t>(random());
  switch (kind) {
    case 0:
      return of(bits);
    case 1:
      return of((bits & 0x807fffff) | (100 + other % 50) << 23);
    case 2:
      return of(other % 3 == 0 ? bits & 0x80000000 : bits & 0x80ffffff);
    case 3:
      return of((bits & 0x80700000) | (127 - other % 3) << 23);
    case 4:  // a zero beside a large factor is a product without an exponent
      return of(other % 3 == 0 ? bits & 0x80000000 : (bits & 0x807fffff) | other / 3 % 255 << 23);
    case 5:
      return of((other % 8 == 0 ? bits & 0x80000000 : 0) | 0x3fffffff);
    default:
      return of(other % 50 == 0 ? (bits & 0x80000001) | 0x7f800000
                                : (bits & 0x807fffff) | 127U << 23);
  }
}

// Vectors of columns give what one column after the other does.
TEST(TensorCoreSum, OfManyColumnsIsThatOfEach) {
  constexpr int kKinds = 7;
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 7000; ++repeat) {
    const int kind = repeat % kKinds;
    const reference::TensorCore& core =
        random() % 2 == 0 ? reference::kTensorCore16 : reference::kTensorCore8;
    const std::size_t n = random() % 27;
    const auto most = static_cast<unsigned>(repeat % 2 == 0 ? core.terms : 2);
    const int terms = 1 + static_cast<int>(random() % most);
    const auto draw = [&] { return number_of_kind(kind, random); };
    std::vector<float> sums(n), a(static_cast<std::size_t>(terms)), x(a.size() * n);
    std::ranges::generate(sums, draw);
    std::ranges::generate(a, draw);
    std::ranges::generate(x, draw);
    std::vector<const float*> rows;
    for (std::size_t k = 0; k < a.size(); ++k) rows.push_back(x.data() + k * n);
    std::vector<float> expected;
    for (std::size_t c = 0; c < n; ++c) {
      std::vector<float> column;
      for (const float* row : rows) column.push_back(row[c]);
      expected.push_back(tensor_core_sum(sums[c], a.data(), column.data(), terms, core));
    }
    reference::tensor_core_sums(sums.data(), static_cast<std::int64_t>(n), a.data(), rows.data(),
                                terms, core);
    for (std::size_t c = 0; c < n; ++c) {
      if (std::isnan(expected[c])) {
        EXPECT_TRUE(std::isnan(sums[c])) << repeat << ' ' << c;
      } else {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(sums[c]), std::bit_cast<std::uint32_t>(expected[c]))
            << repeat << ' ' << c;
      }
    }
  }
}

// What an H200 gave for 1 and eight times x = 2^-9, ..., 2^-16, and their negatives, of 8-bit
// floats.
TEST(TensorCoreSum, Of8BitFloatsKeeps13Bits) {
  const auto one_and_eight = [](float x, bool product) {
    std::array<float, 32> a{}, b{};
    for (std::size_t k = 0; k < 8; ++k) a[k] = x, b[k] = 1;
    if (product) a[31] = b[31] = 1;
    return tensor_core_sum(product ? 0.F : 1.F, a.data(), b.data(), 32, reference::kTensorCore8);
  };
  for (const bool product : {false, true}) {
    for (const float sign : {1.F, -1.F}) {
      for (int e = 9; e <= 13; ++e) {
        const float x = std::ldexp(sign, -e);
        EXPECT_EQ(one_and_eight(x, product), 1 + 8 * x) << e;
      }
      for (int e = 14; e <= 16; ++e) {
        EXPECT_EQ(one_and_eight(std::ldexp(sign, -e), product), 1) << e;
      }
    }
  }
  // The sum, 1.5 + 2^-13 + 1.5, is 3 after its own 13 bits.
  const std::array<float, 3> a{1.5F, 1.5F, 0x1p-13F}, b{1, 1, 1};
  EXPECT_EQ(tensor_core_sum(0, a.data(), b.data(), 3, reference::kTensorCore8), 3);
}

TEST(TensorCoreSum, InfinityAndNanStay) {
  const float inf = INFINITY, one = 1, zero = 0;
  EXPECT_EQ(tensor_core_sum(1, &inf, &one, 1), INFINITY);
  EXPECT_TRUE(std::isnan(tensor_core_sum(1, &inf, &zero, 1)));
  EXPECT_TRUE(std::isnan(tensor_core_sum(-INFINITY, &inf, &one, 1)));
}

double share(std::vector<Expected>& expected, std::string_view tensor) {
  const Part whole{expected};
  for (const Comparison& c : judge({&whole, 1})) {
    if (c.tensor == tensor) return c.share();
  }
  return -1;
}

// 13 steps cut a large score off by half a unit each, so LSE is 9e-7 of itself too near to 0: wrong
// of anything but tensor cores.
TEST(TensorCoreYardstick, AllowsOnAGpuWhatItDoesNotAllowOnACpu) {
  CaseData data(parse_case("b1_n64_h4_d200_f16/negative_q10_k10"), 1);
  const auto expect = [&] { return expect_forward(data.problem, data.inputs, data.outputs, 1); };
  reference::forward(data.problem, data.inputs, data.outputs, Precision::tensor_core);
  std::vector<Expected> cpu = expect(), gpu = expect();
  measure_tensor_cores(data.problem, data.inputs, gpu);
  EXPECT_GT(share(cpu, "lse"), 1.2);
  EXPECT_LT(share(gpu, "lse"), 0.8);
  EXPECT_LT(share(gpu, "o"), 1);

  // Twice the error is too much there as well.
  const std::vector<double> exact = cpu[1].exact.values;
  auto* lse = static_cast<float*>(data.outputs.lse.data);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    lse[i] = static_cast<float>(exact[i] * (1 - 3e-6));
  }
  EXPECT_GT(share(gpu, "lse"), 1);
}

TEST(TensorCoreYardstick, IsNoneOfFloat32) {
  CaseData data(parse_case("b1_n64_h2_d32_f32"), 1);
  std::vector<Expected> expected = expect_forward(data.problem, data.inputs, data.outputs, 2);
  const std::size_t measured = expected.front().measured;
  measure_tensor_cores(data.problem, data.inputs, expected);
  EXPECT_EQ(expected.front().measured, measured);
}

// Q, K and V of 8-bit floats, as a GPU may compute with them: P rounded to 8 bits, sums cut to 13.
class Of8Bits : public ::testing::TestWithParam<const char*> {
 protected:
  CaseData data{parse_case(GetParam()), 1};
  std::vector<Expected> cpu = expect_forward(data.problem, data.inputs, data.outputs, 1);
  std::vector<Expected> gpu = expected_of_gpu();
  std::vector<Expected> expected_of_gpu() {
    std::vector<Expected> expected = cpu;
    measure_tensor_cores(data.problem, data.inputs, expected);
    return expected;
  }
  // O of the problem with another mask, times a factor: so much is left of what a GPU may be off
  // by.
  double share_of(const expr::Expr& mask, double factor) {
    Problem other = data.problem;
    other.mask = mask;
    const Outputs exact = data.f64_outputs();
    reference::forward(other, data.inputs, exact);
    for (std::int64_t i = 0; i < exact.o.size(); ++i) {
      store_element(data.outputs.o, i, factor * load_element(exact.o, i));
    }
    reference::forward(data.problem, data.inputs, {.o = exact.o, .lse = data.outputs.lse});
    return share(gpu, "o");
  }
};

TEST_P(Of8Bits, AGpuMayLoseWhatThoseLose) {
  reference::forward(data.problem, data.inputs, data.outputs, Precision::tensor_core_8);
  EXPECT_GT(share(cpu, "o"), 2);
  EXPECT_LT(share(gpu, "o"), 1);
  EXPECT_LT(share(gpu, "lse"), 1);
}

TEST_P(Of8Bits, ALostKeyAndAFactorAreSeen) {
  const expr::Symbols& s = expr::symbols();
  EXPECT_LT(share_of(data.problem.mask, 1), 0.5);
  EXPECT_GT(share_of(s.key != 77, 1), 1);
  EXPECT_GT(share_of(data.problem.mask, 1.05), 1);
  EXPECT_GT(share_of(data.problem.mask, 0.95), 1);
  EXPECT_GT(share_of(data.problem.mask, 1 + 1.0 / 16), 1);
}

INSTANTIATE_TEST_SUITE_P(TensorCoreYardstick, Of8Bits,
                         ::testing::Values("b1_n256_h2_d64_q(e4m3)_kv(e4m3)_bf16",
                                           "b2_n300_h1_d128_q(e4m3)_kv(e4m3)_f16",
                                           "b1_sq64_sk900_h1_d64_q(e4m3)_kv(e4m3)_f32"),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace attn::verify
