// The backward pass over lists of keys on a GPU: what no row sees reaches no gradient, buffers of
// the score are read, some gradients may be left out, and what is refused is refused by name.
// `attn check` compares problems with finite numbers (tests/cuda/emulator/CMakeLists.txt).
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cuda/gpu.hpp"
#include "cuda/gradient_differences.hpp"
#include "cuda/rows.hpp"
#include "reference/reference.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::uint64_t kSeed = 5;

std::string kernel_of(const Problem& problem) {
  return problem.dtype == DType::f32 ? "backward_simt_key_list" : "backward_sm80_key_list";
}

GradientDifferences compare(CaseData& data) {
  return gradient_differences(data, kernel_of(data.problem));
}

class CudaKeyListGradients : public ::testing::TestWithParam<const char*> {
 protected:
  verify::Case with_dtype(const std::string& descriptor) const {
    return verify::parse_case(descriptor + "_" + GetParam());
  }
};

// Of three heads of a group each key is hidden from one. The mask of a NaN in Q, and in K and V.
TEST_P(CudaKeyListGradients, NaNReachesOnlyWhatSeesIt) {
  ATTN_NEEDS_GPU();
  const verify::Case c = with_dtype("b1_sq7_sk60_hq6_hk2_d40_mask((key+head)%3!=0)_list90");
  CaseData plain(c, kSeed);
  EXPECT_EQ(compare(plain).not_finite, 0);
  CaseData of_q(c, kSeed);
  const Rows queries{of_q, true, 0};
  verify::store_element(of_q.inputs.q, queries.element(of_q.inputs.q, 3, 1, 5), kNaN);
  const GradientDifferences from_q = compare(of_q);
  EXPECT_GT(from_q.not_finite, 0);
  EXPECT_EQ(from_q.wrong, 0);
  CaseData of_k(c, kSeed);
  const Rows keys{of_k, false, 0};
  verify::store_element(of_k.inputs.k, keys.element(of_k.inputs.k, 20, 1, 5), kNaN);
  verify::store_element(of_k.inputs.v, keys.element(of_k.inputs.v, 31, 0, 6), kNaN);
  const GradientDifferences from_k = compare(of_k);
  EXPECT_GT(from_k.not_finite, 0);
  EXPECT_EQ(from_k.wrong, 0);
}

TEST_P(CudaKeyListGradients, ReadBuffersByTheKey) {
  ATTN_NEEDS_GPU();
  for (const char* descriptor : {"b2_sq7_sk60_hq6_hk2_d40_bias_list90",
                                 "b2_sq7_sk60_hq6_hk2_d40_causal_alibi_softcap5_list70_sink"}) {
    CaseData data(with_dtype(descriptor), kSeed);
    EXPECT_EQ(compare(data).wrong, 0) << descriptor;
  }
}

// What is not asked for is not written, and the others are what they are together.
TEST_P(CudaKeyListGradients, MayBeAskedForAlone) {
  ATTN_NEEDS_GPU();
  const verify::Case c = with_dtype("b1_sq7_sk60_hq6_hk2_d40_list90");
  for (Tensor Gradients::*kept : {&Gradients::dq, &Gradients::dk, &Gradients::dv}) {
    CaseData data(c, kSeed);
    for (Tensor Gradients::*other : {&Gradients::dq, &Gradients::dk, &Gradients::dv}) {
      if (other != kept) data.gradients.*other = {};
    }
    const Outputs outputs = data.f64_outputs();
    CaseData whole(c, kSeed);
    const Gradients wanted = whole.f64_gradients();
    reference::forward(data.problem, data.inputs, outputs);
    reference::backward(data.problem, data.inputs, outputs, data.d_o, wanted);
    forward(data.problem, data.inputs, data.outputs);
    verify::backward_on_device(data, {.device = kGpu}, {});
    GradientDifferences all;
    all.add(data.gradients.*kept, wanted.*kept, data.problem.dtype == DType::f32 ? 1e-4 : 0.03,
            "a gradient alone");
    EXPECT_EQ(all.wrong, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaKeyListGradients, ::testing::Values("f32", "bf16", "f16"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CudaKeyListPlan, NamesItsKernelAndSaysThatBitsMayDiffer) {
  ATTN_NEEDS_GPU();
  for (const char* descriptor :
       {"b1_sq7_sk60_hq6_hk2_d40_list90_bf16", "b1_sq7_sk60_hq6_hk2_d40_list90_f32"}) {
    const Problem problem = verify::parse_case(descriptor).problem;
    const Plan plan = make_plan(problem, Phase::backward, {.device = kGpu});
    EXPECT_EQ(plan.launch.kernel, kernel_of(problem));
    EXPECT_TRUE(std::ranges::any_of(plan.reasons, [](const std::string& reason) {
      return reason.find("no fixed order") != std::string::npos;
    }));
    // Sums of dK and dV: 60 keys of 2 heads and 2 tensors of 48 columns in whole blocks of 16.
    EXPECT_GE(plan.workspace_bytes, 60 * 2 * 2 * 48 * 4);
  }
}

TEST(CudaKeyListPlan, RefusesByName) {
  ATTN_NEEDS_GPU();
  const Problem lists = verify::parse_case("b1_sq7_sk60_hq6_hk2_d40_list90_bf16").problem;
  const Problem none = verify::parse_case("b1_sq7_sk60_hq6_hk2_d40_bf16").problem;
  const auto why = [](const Problem& problem, PlanOptions options) {
    options.device = kGpu;
    return refusal(ErrorCode::unsupported, [&] { make_plan(problem, Phase::backward, options); });
  };
  expect_contains(
      why(lists, {.deterministic = true}),
      "deterministic is true and key_list is 90; accepted beside lists of keys is false");
  expect_contains(why(lists, {.kernel = "backward_simt"}),
                  "key_list is 90; accepted by backward_simt is 0");
  expect_contains(why(none, {.kernel = "backward_sm80_key_list"}),
                  "key_list is 0; accepted by backward_sm80_key_list");
}

TEST(CudaKeyListPlan, RefusesGradientsOfBuffersByName) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case("b1_sq7_sk60_hq6_hk2_d40_bias_list90_f32"), kSeed);
  forward(data.problem, data.inputs, data.outputs);
  const std::string why = refusal(ErrorCode::unsupported,
                                  [&] { verify::backward_on_device(data, {.device = kGpu}, {}); });
  expect_contains(why, "the gradient of the buffer 'bias' is asked for and key_list is 90");
}

}  // namespace
}  // namespace attn::cuda
