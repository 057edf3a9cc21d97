// Every mask sees exactly the keys that it should, on each kernel of the GPU.
#include "conformance/visibility.hpp"

#include "cuda/gpu.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;
using verify::kVisibilities;

class CudaVisibility : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CudaVisibility, OneKeyAtATimeAtEveryDifferenceOfLengths) {
  ATTN_NEEDS_GPU();
  const verify::Visibility& visibility = kVisibilities[GetParam()];
  int ran = 0;
  for (const char* kernel : {"forward_sm90", "forward_sm80", "forward_simt"}) {
    for (std::int64_t difference = 0; difference <= verify::kMaxDifference; ++difference) {
      const std::string text = verify::visibility_case(visibility, difference, "bf16");
      SCOPED_TRACE(text + ", " + kernel);
      CaseData data(verify::parse_case(text), 1);
      try {
        verify::forward_on_device(
            data, {.algorithm = Algorithm::flash_attention_2, .device = kGpu, .kernel = kernel}, {},
            true);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::unsupported) << error.what();
        ASSERT_EQ(kernel, std::string("forward_sm90")) << error.what();
        break;
      }
      ++ran;
      EXPECT_EQ(verify::visibility_error(data, visibility, data.outputs.o, false), "");
    }
  }
  EXPECT_GE(ran, 2 * verify::kMaxDifference);
}

// causal and window.
INSTANTIATE_TEST_SUITE_P(Masks, CudaVisibility, ::testing::Values<std::size_t>(0, 1));

}  // namespace
}  // namespace attn::cuda
