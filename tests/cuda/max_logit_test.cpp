// The largest score of each head on a GPU where scores are NaN or infinite, where infinite keys are
// hidden, and where heads see nothing.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/gpu.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;
using verify::load_element;
using verify::store_element;

struct LogitCase {
  const char* problem;
  const char* kernel;
};

class CudaMaxLogit : public ::testing::TestWithParam<LogitCase> {};

std::vector<double> largest(const CaseData& data) {
  std::vector<double> x;
  for (std::int64_t h = 0; h < data.problem.heads_q; ++h) {
    x.push_back(load_element(data.outputs.max_logit, h));
  }
  return x;
}

// Sets the first element of a row of K.
void spoil(CaseData& data, std::int64_t key, std::int64_t head, float value) {
  const Tensor& k = data.inputs.k;
  store_element(k, (key * k.shape[2] + head) * k.shape[3], value);
}

TEST_P(CudaMaxLogit, IsNaNWhereAScoreIsAndLeavesOtherHeadsAlone) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(GetParam().problem), 1);
  ATTN_NEEDS_KERNEL(data.problem);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // The first keys of the first two heads, and what the mask hides from the third.
  spoil(data, 1, 0, std::numeric_limits<float>::quiet_NaN());
  spoil(data, 2, 1, kInfinity);
  store_element(data.inputs.q, data.inputs.q.shape[3], 1);  // so that a score is +inf
  spoil(data, 3, 2, std::numeric_limits<float>::quiet_NaN());
  data.poison();
  forward(data.problem, data.inputs, data.outputs, {.backend = Backend::reference});
  const std::vector<double> expected = largest(data);
  ASSERT_TRUE(std::isnan(expected[0]) && std::isnan(expected[1]));
  ASSERT_TRUE(std::isfinite(expected[2]));
  ASSERT_EQ(expected[3], -double{kInfinity});
  forward_on_device(data, {.device = kGpu, .kernel = GetParam().kernel}, {}, true);
  const std::vector<double> got = largest(data);
  EXPECT_TRUE(std::isnan(got[0])) << got[0];
  EXPECT_TRUE(std::isnan(got[1])) << got[1];
  EXPECT_NEAR(got[2], expected[2], 1e-5 * std::abs(expected[2]));
  EXPECT_EQ(got[3], expected[3]);
}

// The fourth head sees nothing.
INSTANTIATE_TEST_SUITE_P(
    Cases, CudaMaxLogit,
    ::testing::Values(
        LogitCase{"b1_sq70_sk200_h4_d64_mask(head<2||head==2&&key>9)_bf16/maxlogit",
                  "forward_sm90"},
        LogitCase{"b1_sq70_sk200_h4_d64_mask(head<2||head==2&&key>9)_alibi_bf16/maxlogit",
                  "forward_sm90"},
        LogitCase{"b1_sq70_sk200_h4_d64_mask(head<2||head==2&&key>9)_f16/maxlogit", "forward_sm80"},
        LogitCase{"b1_sq2_sk200_h4_d64_mask(head<2||head==2&&key>9)_bf16/maxlogit",
                  "forward_sm80_few_rows"},
        LogitCase{"b1_sq9_sk200_h4_d576_dv512_mask(head<2||head==2&&key>9)_bf16/maxlogit",
                  "forward_sm80_wide"},
        LogitCase{"b1_sq40_sk200_h4_d576_dv512_mask(head<2||head==2&&key>9)_bf16/maxlogit",
                  "forward_sm90_wide"},
        LogitCase{"b1_sq40_sk90_h4_d40_mask(head<2||head==2&&key>9)_f32/maxlogit", "forward_simt"},
        LogitCase{"b1_sq40_sk90_h4_d40_mask(head<2||head==2&&key>9)_f32/maxlogit",
                  "forward_standard"}));

TEST(CudaMaxLogit, IsRefusedWhereTheKernelLacksIt) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case("b1_n20_h2_d16_f32/maxlogit"), 1);
  try {
    forward_on_device(data, {.device = kGpu, .kernel = "forward_flash_attention"}, {}, true);
    FAIL() << "it ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("max_logit"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace attn::cuda
