// What a sequence holds changes no bit of another's results, and what a K, V head and its query
// heads hold none of another group's: wherever they lie, and whatever lies between them.
#include <algorithm>
#include <cstring>

#include "cuda/gpu.hpp"
#include "cuda/rows.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;
using verify::load_element;

// Of sequence b and a K, V head: Q so much larger that references of the softmax move and rows are
// lost, others another sign.
void change_inputs(const CaseData& data, std::int64_t b, std::int64_t head_k) {
  const Rows queries{data, true, b}, keys{data, false, b};
  const std::int64_t group = data.problem.heads_q / data.problem.heads_k;
  for (std::int64_t i = 0; i < group; ++i) {
    change(data.inputs.q, queries, 0, queries.in_use(), head_k * group + i,
           [](double x) { return 1024 * x; });
  }
  for (const Tensor* t : {&data.inputs.k, &data.inputs.v}) {
    change(*t, keys, 0, keys.in_use(), head_k, [](double x) { return -x; });
  }
}

// Bits of O and LSE of sequence b and a K, V head's group.
std::vector<std::uint64_t> results(const CaseData& data, std::int64_t b, std::int64_t head_k) {
  const Rows rows{data, true, b};
  const Problem& p = data.problem;
  const std::int64_t group = p.heads_q / p.heads_k;
  std::vector<std::uint64_t> bits;
  const auto put = [&](double x) {
    bits.emplace_back();
    std::memcpy(&bits.back(), &x, sizeof(x));
  };
  for (std::int64_t head = head_k * group; head < (head_k + 1) * group; ++head) {
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      for (std::int64_t i = 0; i < p.head_dim_v; ++i) {
        put(load_element(data.outputs.o, rows.element(data.outputs.o, row, head, i)));
      }
      put(load_element(data.outputs.lse, rows.lse(data.outputs.lse, row, head)));
    }
  }
  return bits;
}

class CudaNeighbours : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void run(CaseData& data) const {
    verify::forward_on_device(data, {.device = kGpu, .kernel = std::get<1>(GetParam())}, {}, true);
  }
  // Whether the kernel takes the case.
  bool takes(const Problem& problem) const {
    try {
      make_plan(problem, Phase::forward, {.device = kGpu, .kernel = std::get<1>(GetParam())});
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      return false;
    }
  }
};

constexpr std::uint64_t kSeed = 5;

TEST_P(CudaNeighbours, DoNotChangeEachOther) {
  ATTN_NEEDS_GPU();
  const verify::Case c = verify::parse_case(std::get<0>(GetParam()));
  CaseData before(c, kSeed);
  if (!takes(before.problem)) GTEST_SKIP() << "skipped: the kernel does not take the case";
  run(before);
  const Problem& p = before.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t head_k = 0; head_k < p.heads_k; ++head_k) {
      CaseData after(c, kSeed);
      change_inputs(after, b, head_k);
      run(after);
      for (std::int64_t other = 0; other < p.batch; ++other) {
        for (std::int64_t head = 0; head < p.heads_k; ++head) {
          const bool same = results(before, other, head) == results(after, other, head);
          if (other == b && head == head_k) {
            EXPECT_FALSE(same) << "nothing was changed in sequence " << b;
          } else {
            EXPECT_TRUE(same) << "sequence " << b << ", K, V head " << head_k
                              << " changed results of sequence " << other << ", head " << head;
          }
        }
      }
    }
  }
}

// Rows of Q past a length may hold anything.
class CudaUnusedRows : public CudaNeighbours {};

TEST_P(CudaUnusedRows, DecideNothing) {
  ATTN_NEEDS_GPU();
  const verify::Case c = verify::parse_case(std::get<0>(GetParam()));
  CaseData before(c, kSeed), after(c, kSeed);
  if (!takes(before.problem)) GTEST_SKIP() << "skipped: the kernel does not take the case";
  const Problem& p = before.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Rows rows{after, true, b};
    for (std::int64_t head = 0; head < p.heads_q; ++head) {
      std::int64_t i = 0;
      change(after.inputs.q, rows, rows.in_use(), rows.count(), head,
             [&](double) { return static_cast<double>(i++ * 37 % 41 - 20); });
    }
  }
  run(before);
  run(after);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t head = 0; head < p.heads_k; ++head) {
      EXPECT_TRUE(results(before, b, head) == results(after, b, head)) << "sequence " << b;
    }
  }
}

const auto kKernels = ::testing::Values("forward_sm90", "forward_sm80", "forward_simt");
constexpr auto kName =
    [](const ::testing::TestParamInfo<std::tuple<const char*, const char*>>& info) {
      return verify::test_name(std::string(std::get<1>(info.param)) + "_" +
                               std::get<0>(info.param));
    };

INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaNeighbours,
    ::testing::Combine(
        ::testing::Values("b3_sq40_sk900_h1_d64_packed_bf16/cuq0,20,57,97_cuk0,700,1500,2100",
                          "b2_sq70_sk600_hq4_hk2_d64_packed_softcap30_f16/cuq0,5,71_cuk0,600,1100",
                          "b2_sq40_sk600_h1_d128_causal_packed_bf16/cuq0,21,40_cuk0,600,1190",
                          "b2_sq40_sk600_hq2_hk2_d64_bf16/usedq9,33_usedk600,551",
                          "b2_sq70_sk500_h1_d64_packedq_paged16_bf16/cuq0,50,90_usedk500,499"),
        kKernels),
    kName);
INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaUnusedRows,
    ::testing::Combine(
        ::testing::Values(
            "b2_sq40_sk600_hq2_hk2_d64_bf16/usedq9,33_usedk600,551",
            "b2_sq70_sk600_hq4_hk2_d64_packed_f16/cuq0,40,71_usedq5,31_cuk0,600,1100"),
        kKernels),
    kName);

const auto kFewRows = ::testing::Values("forward_sm80_few_rows");
INSTANTIATE_TEST_SUITE_P(
    CudaFewRows, CudaNeighbours,
    ::testing::Combine(
        ::testing::Values("b3_sq3_sk900_hq2_hk1_d64_packed_bf16/cuq0,1,4,6_cuk0,700,1500,2100",
                          "b2_sq4_sk600_hq4_hk2_d128_bf16/usedq1,3_usedk600,551",
                          "b2_sq3_sk500_h1_d64_packedq_paged16_bf16/cuq0,2,5_usedk500,499"),
        kFewRows),
    kName);
INSTANTIATE_TEST_SUITE_P(
    CudaFewRows, CudaUnusedRows,
    ::testing::Combine(
        ::testing::Values("b2_sq4_sk600_hq2_hk2_d64_bf16/usedq2,3_usedk600,551",
                          "b2_sq4_sk600_hq4_hk2_d64_packed_f16/cuq0,3,7_usedq2,1_cuk0,600,1100"),
        kFewRows),
    kName);

const auto kWide = ::testing::Values("forward_sm90_wide", "forward_sm80_wide");
INSTANTIATE_TEST_SUITE_P(
    CudaWide, CudaNeighbours,
    ::testing::Combine(
        ::testing::Values("b2_sq20_sk200_hq2_hk1_d288_packed_bf16/cuq0,9,15_cuk0,70,180"), kWide),
    kName);
INSTANTIATE_TEST_SUITE_P(
    CudaWide, CudaUnusedRows,
    ::testing::Combine(::testing::Values("b2_sq40_sk90_h2_d264_bf16/usedq9,13_usedk90,51"), kWide),
    kName);

}  // namespace
}  // namespace attn::cuda
