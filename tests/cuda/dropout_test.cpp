// The dropout mask of the GPU is that of the CPU, bit by bit. With equal scores and columns of V
// that are one key each, O shows which keys of a row were kept.
#include <algorithm>

#include "cuda/gpu.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;
using verify::load_element;
using verify::store_element;

// V[key, c] <- 1 where key is first + c, else 0.
void show_keys(CaseData& data, std::int64_t first) {
  const Tensor& v = data.inputs.v;
  const std::int64_t columns = data.problem.head_dim_v;
  for (std::int64_t b = 0; b < v.shape[0]; ++b) {
    for (std::int64_t key = 0; key < v.shape[1]; ++key) {
      for (std::int64_t h = 0; h < v.shape[2]; ++h) {
        for (std::int64_t c = 0; c < columns; ++c) {
          store_element(v, v.offset({b, key, h, c}), key == first + c ? 1 : 0);
        }
      }
    }
  }
}

// Whether each element of O, row-major, is positive.
std::vector<bool> kept(const CaseData& data) {
  std::vector<bool> positive;
  const Tensor& o = data.outputs.o;
  for (std::int64_t i = 0; i < o.size(); ++i) positive.push_back(load_element(o, i) > 0);
  return positive;
}

class CudaDropout : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaDropout, MaskIsThatOfTheCpu) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(GetParam()), 1);
  ATTN_NEEDS_KERNEL(data.problem);
  for (std::int64_t first = 0; first < data.problem.seqlen_k; first += data.problem.head_dim_v) {
    show_keys(data, first);
    data.poison();
    forward(data.problem, data.inputs, data.outputs, {.backend = Backend::cpu});
    const std::vector<bool> expected = kept(data);
    forward_on_device(data, {.device = kGpu}, {}, true);
    const std::vector<bool> got = kept(data);
    const auto count = std::count(expected.begin(), expected.end(), true);
    EXPECT_GT(count, 0);
    EXPECT_LT(count, static_cast<std::ptrdiff_t>(expected.size()));
    const auto different = std::mismatch(got.begin(), got.end(), expected.begin());
    EXPECT_EQ(different.first - got.begin(), static_cast<std::ptrdiff_t>(got.size()))
        << "first difference, keys from " << first;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaDropout,
    ::testing::Values("b2_sq70_sk320_hq4_hk2_d64_dv128_scale0_dropout0.3_seed99_f16",
                      "b1_sq33_sk200_h3_d64_scale0_dropout0.5_seed7_offset4294967301_bf16",
                      "b1_n200_h2_d128_scale0_causal_dropout0.9_seed123456789012345_f16",
                      "b1_n150_h3_d64_scale0_dropout0.96875_seed4_bf16",
                      "b1_n150_h3_d64_scale0_dropout0.97_seed5_bf16",
                      "b1_n150_h2_d128_scale0_dropout0.999_seed6_rngstate_f16",
                      "b1_n200_hq4_hk2_d128_scale0_causal_dropout0.5_seed7_bf16",
                      "b1_n150_h2_d128_scale0_dropout0.96875_seed4_bf16"),
    [](const ::testing::TestParamInfo<const char*>& info) {
      return verify::test_name(info.param);
    });

}  // namespace
}  // namespace attn::cuda
