// `attn bench` on a GPU: what is verified before it is timed, and that a wrong result is seen.
#include "command/cuda_timing.hpp"
#include "cuda/gpu.hpp"

namespace attn::command {
namespace {

struct Line {
  const char* problem;
  Phase phase;
  const char* extent;
};

class CudaBench : public ::testing::TestWithParam<Line> {};

TEST_P(CudaBench, IsVerified) {
  ATTN_NEEDS_GPU();
  const auto& [problem, phase, extent] = GetParam();
  verify::CaseData data(verify::parse_case(problem), 1);
  const Plan plan = make_plan(data.problem, phase, {.device = cuda::kGpu});
  const GpuCalls calls(plan, data, {});
  const Verification verification = calls.verify();
  EXPECT_TRUE(verification.passed()) << to_string(verification.worst());
  EXPECT_EQ(verification.extent, extent);
  EXPECT_EQ(verification.comparisons.size(), phase == Phase::forward ? 2U : 3U);
  EXPECT_EQ(data.damage(), "");
}

// Where Q on the host is not the one that the GPU has, its results are wrong.
TEST_P(CudaBench, SeesAWrongResult) {
  ATTN_NEEDS_GPU();
  const auto& [problem, phase, extent] = GetParam();
  verify::CaseData data(verify::parse_case(problem), 1);
  const Plan plan = make_plan(data.problem, phase, {.device = cuda::kGpu});
  const GpuCalls calls(plan, data, {});
  const Tensor q = data.inputs.q;
  verify::CaseData other(verify::parse_case(problem), 2);
  data.inputs.q = other.inputs.q;
  EXPECT_FALSE(calls.verify().passed());
  data.inputs.q = q;
}

// The large ones have a window, so that the emulated GPU has few tiles to work on.
constexpr Line kLines[] = {
    {"b1_n40_h2_d64_causal_bf16", Phase::forward, "all rows"},
    {"b1_n40_h2_d64_causal_bf16", Phase::backward, "all rows"},
    {"b1_n2100_h1_d16_window40x0_bf16", Phase::backward, "256 rows of 1 heads"},
};
INSTANTIATE_TEST_SUITE_P(, CudaBench, ::testing::ValuesIn(kLines));

}  // namespace
}  // namespace attn::command
