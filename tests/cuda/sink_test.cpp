// A sink of infinity or NaN on a GPU: rows that see keys are NaN, rows that see none are not, also
// where keys are split and the first split, which has the sink, sees none of them.
#include <cmath>
#include <limits>

#include "cuda/gpu.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;
using verify::load_element;
using verify::store_element;

std::vector<double> elements(const Tensor& t) {
  std::vector<double> x;
  for (std::int64_t i = 0; i < t.size(); ++i) x.push_back(load_element(t, i));
  return x;
}

// NaN, infinities and zeros are where they are expected.
void expect_alike(const Tensor& tensor, const std::vector<double>& expected, const char* name) {
  const std::vector<double> got = elements(tensor);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::isnan(got[i]), std::isnan(expected[i])) << name << ", element " << i;
    if (std::isnan(got[i]) || std::isnan(expected[i])) continue;
    EXPECT_EQ(std::isinf(got[i]), std::isinf(expected[i])) << name << ", element " << i;
    EXPECT_EQ(got[i] == 0, expected[i] == 0) << name << ", element " << i;
  }
}

struct SinkCase {
  const char* problem;
  const char* kernel;
  bool backward;
};

class CudaSink : public ::testing::TestWithParam<SinkCase> {};

TEST_P(CudaSink, OfInfinityOrNaNLeavesRowsWithoutKeysAlone) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(GetParam().problem), 1);
  ATTN_NEEDS_KERNEL(data.problem);
  for (const float sink :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    SCOPED_TRACE(sink);
    store_element(data.inputs.sink, 0, sink);  // of the first head
    data.poison();
    forward(data.problem, data.inputs, data.outputs, {.backend = Backend::reference});
    if (GetParam().backward) {
      backward(data.problem, data.inputs, data.outputs, data.d_outputs(), data.gradients,
               {.backend = Backend::reference});
      const std::vector<double> dq = elements(data.gradients.dq), dk = elements(data.gradients.dk),
                                dv = elements(data.gradients.dv),
                                dsink = elements(data.gradients.dsink);
      backward_on_device(data, {.device = kGpu}, {});
      expect_alike(data.gradients.dq, dq, "dq");
      expect_alike(data.gradients.dk, dk, "dk");
      expect_alike(data.gradients.dv, dv, "dv");
      expect_alike(data.gradients.dsink, dsink, "dsink");
      continue;
    }
    const std::vector<double> o = elements(data.outputs.o), lse = elements(data.outputs.lse);
    forward_on_device(data, {.device = kGpu, .kernel = GetParam().kernel}, {}, true);
    expect_alike(data.outputs.o, o, "o");
    expect_alike(data.outputs.lse, lse, "lse");
  }
}

// A sink as far from 0 as the keys' scores has the weight of one of them.
TEST(CudaFarSink, HasTheWeightOfAKey) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case("b1_n29_h2_d64_score(2.0*(score-1e30))_sink_bf16"), 1);
  store_element(data.inputs.sink, 0, -2e30);
  store_element(data.inputs.sink, 1, -2e30);
  const auto run = [&](const auto& run_backward) {
    data.poison();
    forward(data.problem, data.inputs, data.outputs, {.backend = Backend::reference});
    run_backward();
    return elements(data.gradients.dsink);
  };
  const std::vector<double> expected = run([&] {
    backward(data.problem, data.inputs, data.outputs, data.d_outputs(), data.gradients,
             {.backend = Backend::reference});
  });
  const std::vector<double> got = run([&] { backward_on_device(data, {.device = kGpu}, {}); });
  for (std::size_t h = 0; h < 2; ++h) EXPECT_NEAR(got[h], expected[h], 1e-4) << "head " << h;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaSink,
    ::testing::Values(SinkCase{"b1_sq6_sk3_h2_d64_causal_sink_bf16", "forward_sm90", false},
                      SinkCase{"b1_sq6_sk3_h2_d64_causal_sink_bf16", "forward_sm80", false},
                      SinkCase{"b1_sq6_sk3_h2_d64_causal_sink_f32", "forward_simt", false},
                      SinkCase{"b1_sq2_sk1500_hq2_hk1_d64_mask(query>0)_sink_bf16", "", false},
                      SinkCase{"b1_sq2_sk1500_hq2_hk1_d64_mask(query>0&&key>900)_sink_bf16", "",
                               false},
                      SinkCase{"b1_sq6_sk3_h2_d64_causal_sink_bf16", "", true}));

}  // namespace
}  // namespace attn::cuda
