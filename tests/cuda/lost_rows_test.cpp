// Rows whose scores rise so far in one step that what a kernel has summed by then is of no use:
// they are computed again, whatever comes after that step (device/softmax/online.cuh, kLost).
#include <cmath>

#include "cuda/gpu.hpp"
#include "cuda/rows.hpp"
#include "reference/reference.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;
using verify::load_element;
using verify::store_element;

// All queries are the same, and all keys have a score of 0 but those at `keys`.
void set_scores(CaseData& data, const std::vector<std::pair<std::int64_t, double>>& keys) {
  const Rows queries{data, true, 0}, rows{data, false, 0};
  const Tensor &q = data.inputs.q, &k = data.inputs.k;
  change(q, queries, 0, queries.count(), 0, [](double) { return 0.0; });
  change(k, rows, 0, rows.count(), 0, [](double) { return 0.0; });
  for (std::int64_t row = 0; row < queries.count(); ++row) {
    store_element(q, queries.element(q, row, 0, 0), 1);
  }
  for (const auto& [key, score] : keys) store_element(k, rows.element(k, key, 0, 0), score);
}

class LostRows : public ::testing::TestWithParam<const char*> {};

// Scores of 88 and 88.5 are 2^127 and 2^127.7. After the first l is 2^127; the second lies in the
// last of 32 blocks whose coverage is looked up together, which takes its maximum first. O and l
// would be multiplied by 2^-127.7, which is flushed to 0: the first key would be gone, and l small.
TEST_P(LostRows, StayLostWhenTheReferenceMoves) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case("b1_sq64_sk4500_h1_d64_causal_scale1_bf16"), 3);
  const Rows queries{data, true, 0}, rows{data, false, 0};
  set_scores(data, {{4300, 88}, {4100, 88.5}});
  change(data.inputs.v, rows, 0, rows.count(), 0, [](double x) { return x / 4; });
  const Outputs expected = data.f64_outputs();
  reference::forward(data.problem, data.inputs, expected);
  verify::forward_on_device(data, {.device = kGpu, .kernel = GetParam()}, {}, true);
  for (std::int64_t row = 0; row < queries.count(); ++row) {
    for (std::int64_t i = 0; i < data.problem.head_dim_v; ++i) {
      ASSERT_NEAR(load_element(data.outputs.o, queries.element(data.outputs.o, row, 0, i)),
                  load_element(expected.o, queries.element(expected.o, row, 0, i)), 0.01)
          << "row " << row << ", column " << i;
    }
    ASSERT_NEAR(load_element(data.outputs.lse, queries.lse(data.outputs.lse, row, 0)),
                load_element(expected.lse, queries.lse(expected.lse, row, 0)), 1e-4)
        << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, LostRows,
                         ::testing::Values("forward_sm90", "forward_sm80", "forward_simt"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace attn::cuda
