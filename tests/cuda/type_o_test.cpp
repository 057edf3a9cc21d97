// O in float32 beside 16-bit operands (Problem::type_o): no kernel rounds it to 16 bits on the way,
// be its keys split, its row computed again because hidden values are NaN, or neither.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "cuda/gpu.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;
using verify::load_element;
using verify::store_element;

struct OutputCase {
  const char* problem;
  const char* kernel;
  std::int32_t splits = 1;
};

class CudaTypeO : public ::testing::TestWithParam<OutputCase> {};

// Q is 0, so that O is the mean of V, numbers of up to 16 bits. Hidden keys have NaN.
void make_means(CaseData& data) {
  const Tensor &q = data.inputs.q, &v = data.inputs.v;
  for (std::int64_t i = 0; i < q.size(); ++i) store_element(q, i, 0);
  const std::int64_t row = v.shape[2] * v.shape[3];
  std::mt19937_64 random(36);
  for (std::int64_t i = 0; i < v.size(); ++i) {
    const bool hidden = !data.problem.mask.empty() && i / row >= 64;
    const auto drawn = static_cast<double>(random() % 128);
    store_element(v, i, hidden ? std::numeric_limits<double>::quiet_NaN() : 1 + drawn / 128);
  }
}

TEST_P(CudaTypeO, HasTheBitsOfFloat) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(GetParam().problem), 1);
  ATTN_NEEDS_KERNEL(data.problem);
  make_means(data);
  data.poison();
  forward(data.problem, data.inputs, data.outputs, {.backend = Backend::reference});
  const Tensor& o = data.outputs.o;
  ASSERT_EQ(o.dtype, DType::f32);
  const verify::Elements expected = verify::read_elements(o);
  double of_16_bits = 0;  // the largest error of rounding to bf16, or f16
  for (const double x : expected.values) {
    const double unit = data.problem.dtype == DType::f16 ? 0x1p10 : 0x1p7;
    of_16_bits = std::max(of_16_bits, std::abs(std::nearbyint(x * unit) / unit - x));
  }
  ASSERT_GT(of_16_bits, 0x1p-12);
  const PlanOptions options{.device = kGpu, .kernel = GetParam().kernel};
  EXPECT_GE(make_plan(data.problem, Phase::forward, options).num_splits, GetParam().splits);
  data.poison();
  forward_on_device(data, options, {}, true);
  const verify::Elements got = verify::read_elements(o);
  double worst = 0;
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    const double error = std::abs(got.values[i] - expected.values[i]);
    worst = std::isnan(error) ? error : std::max(worst, error);
    ASSERT_FALSE(std::isnan(worst)) << "element " << i;
  }
  EXPECT_LT(worst, 0x1p-18);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaTypeO,
    ::testing::Values(OutputCase{"b1_sq70_sk128_hq4_hk2_d64_o(f32)_bf16", "forward_sm90"},
                      OutputCase{"b1_sq70_sk128_h1_d128_mask(key<64)_o(f32)_bf16", "forward_sm90"},
                      OutputCase{"b1_sq70_sk64_h1_d80_dv40_o(f32)_f16", "forward_sm80"},
                      OutputCase{"b2_sq1_sk128_hq4_hk1_d64_o(f32)_bf16", "forward_sm80_few_rows"},
                      OutputCase{"b1_sq1_sk4096_hq4_hk1_d64_o(f32)_bf16", "forward_sm80_few_rows",
                                 2},
                      OutputCase{"b1_sq3_sk64_hq4_hk1_d512_o(f32)_bf16", "forward_sm80_wide"},
                      OutputCase{"b1_sq3_sk64_h1_d320_dv264_o(f32)_bf16", "forward_sm80_wide"},
                      OutputCase{"b1_sq40_sk128_h1_d576_dv512_o(f32)_bf16", "forward_sm90_wide"},
                      OutputCase{"b1_sq20_sk90_h1_d40_mask(key<64)_o(f32)_bf16", "forward_simt"},
                      OutputCase{"b1_sq40_sk64_h1_d40_o(f32)_bf16", "forward_standard"},
                      OutputCase{"b1_sq40_sk64_h1_d40_o(f32)_bf16", "forward_flash_attention"}));

}  // namespace
}  // namespace attn::cuda
