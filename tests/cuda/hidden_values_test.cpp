// Keys that a row does not see change nothing of it, whatever K and V hold there: NaN and infinity,
// and pages that are not there. Nor do keys that it hardly sees, whose scores are far below others.
#include <cmath>
#include <limits>

#include "cuda/gpu.hpp"
#include "cuda/gradient_differences.hpp"
#include "cuda/rows.hpp"
#include "reference/reference.hpp"

namespace attn::cuda {
namespace {

using verify::CaseData;
using verify::load_element;
using verify::store_element;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class CudaHidden : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  // Runs the case and compares all of it with the reference: what is finite there is near, what is
  // not is not finite. Says how many rows there are that hold something else than finite numbers.
  static int compare(CaseData& data) { return compare(data, reference_of(data)); }
  static Outputs reference_of(CaseData& data) {
    const Outputs expected = data.f64_outputs();
    reference::forward(data.problem, data.inputs, expected);
    return expected;
  }
  static int compare(CaseData& data, const Outputs& expected) {
    verify::forward_on_device(data, {.device = kGpu, .kernel = std::get<1>(GetParam())}, {}, true);
    const double near = data.problem.dtype == DType::f32 ? 1e-4 : 0.03;
    int wrong = 0, not_finite = 0;
    const auto one = [&](const Tensor& got, const Tensor& want, std::int64_t at_got,
                         std::int64_t at_want) {
      const double x = load_element(got, at_got), y = load_element(want, at_want);
      if (std::isinf(y) && y < 0 && x == y) return;  // LSE of a row that sees nothing
      const bool good = std::isfinite(y) ? std::abs(x - y) <= near : !std::isfinite(x);
      if (!std::isfinite(y)) ++not_finite;
      if (!good && wrong++ == 0)
        ADD_FAILURE() << "element " << at_want << " is " << x << ", not " << y;
    };
    for (std::int64_t b = 0; b < data.problem.batch; ++b) {
      const Rows rows{data, true, b};
      for (std::int64_t head = 0; head < data.problem.heads_q; ++head) {
        for (std::int64_t row = 0; row < rows.count(); ++row) {
          for (std::int64_t i = 0; i < data.problem.head_dim_v; ++i) {
            one(data.outputs.o, expected.o, rows.element(data.outputs.o, row, head, i),
                rows.element(expected.o, row, head, i));
          }
          one(data.outputs.lse, expected.lse, rows.lse(data.outputs.lse, row, head),
              rows.lse(expected.lse, row, head));
        }
      }
    }
    EXPECT_EQ(wrong, 0);
    return not_finite;
  }
  static bool takes(const Problem& problem, Phase phase = Phase::forward) {
    try {
      make_plan(problem, phase, {.device = kGpu, .kernel = std::get<1>(GetParam())});
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      return false;
    }
  }
};

constexpr std::uint64_t kSeed = 7;

TEST_P(CudaHidden, NaNReachesOnlyRowsThatSeeIt) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(std::get<0>(GetParam())), kSeed);
  if (!takes(data.problem)) GTEST_SKIP() << "skipped: the kernel does not take the case";
  ASSERT_EQ(compare(data), 0);
  const Problem& p = data.problem;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Rows keys{data, false, b};
    const std::int64_t n = keys.in_use();
    for (std::int64_t head = 0; head < p.heads_k; ++head) {
      const auto plant = [&](const Tensor& t, std::int64_t key, std::int64_t column, double x) {
        if (key >= 0 && key < n) store_element(t, keys.element(t, key, head, column), x);
      };
      plant(data.inputs.v, n - 1, 0, kNaN);
      plant(data.inputs.v, n - 4, p.head_dim_v - 1, kInfinity);
      plant(data.inputs.v, n / 2, 1, -kInfinity);
      plant(data.inputs.v, n / 3, p.head_dim_v / 2, kNaN);
      plant(data.inputs.k, n - 2, 3, kNaN);
    }
  }
  EXPECT_GT(compare(data), 0) << "no row sees what was planted";
}

// A key with a score of -inf has P = 0 and adds nothing either, and takes nothing. A buffer holds
// -inf for some keys, whose V is NaN: for all rows, or for the first half of them where it has
// rows. Where a condition of the score reads it, K may be NaN too, and Q and dO of a row.
class CudaHiddenByScore : public CudaHidden {
 protected:
  static void hide(CaseData& data, std::int64_t hidden_rows) {
    const std::int64_t n = data.problem.seqlen_k;
    const Tensor& bias = data.inputs.buffers.at(0).second;
    const std::int64_t rows = bias.size() / n;
    const Rows keys{data, false, 0};
    for (const std::int64_t key : {n - 1, n / 2, n / 3}) {
      store_element(data.inputs.v, keys.element(data.inputs.v, key, 0, key % 8), kNaN);
      if (selects(data)) {
        store_element(data.inputs.k, keys.element(data.inputs.k, key, 0, key % 8), kNaN);
      }
      for (std::int64_t row = 0; row < std::min(rows, hidden_rows); ++row) {
        store_element(bias, row * n + key, -kInfinity);
      }
    }
  }
  static bool selects(const CaseData& data) {
    return to_string(data.problem.score).find("select") != std::string::npos;
  }
  static void spoil_row(CaseData& data) {
    const Rows queries{data, true, 0};
    store_element(data.inputs.q, queries.element(data.inputs.q, 3, 0, 5), kNaN);
    store_element(data.d_o, queries.element(data.d_o, 3, 0, 7), kNaN);
  }
  // All of the gradients with what the reference says, as compare().
  static int compare_gradients(CaseData& data) {
    const GradientDifferences all = gradient_differences(data, std::get<1>(GetParam()));
    EXPECT_EQ(all.wrong, 0);
    return all.not_finite;
  }
};

TEST_P(CudaHiddenByScore, NaNReachesOnlyRowsThatSeeIt) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(std::get<0>(GetParam())), kSeed);
  hide(data, data.problem.seqlen_q / 2);
  const bool has_rows = data.inputs.buffers.at(0).second.size() > data.problem.seqlen_k;
  EXPECT_EQ(compare(data) > 0, has_rows);
}

class CudaHiddenByScoreBackward : public CudaHiddenByScore {};

TEST_P(CudaHiddenByScoreBackward, NaNReachesNoGradientOfAnother) {
  ATTN_NEEDS_GPU();
  const verify::Case c = verify::parse_case(std::get<0>(GetParam()));
  CaseData data(c, kSeed);
  if (!takes(data.problem, Phase::backward)) GTEST_SKIP() << "skipped: not a kernel of this GPU";
  hide(data, data.problem.seqlen_q);
  EXPECT_EQ(compare_gradients(data), 0);
  CaseData half(c, kSeed);
  hide(half, half.problem.seqlen_q / 2);
  EXPECT_EQ(compare_gradients(half) > 0, half.inputs.buffers.at(0).second.size() > 200);
  if (!selects(data)) return;
  spoil_row(data);
  EXPECT_GT(compare_gradients(data), 0);
}

const auto kKernels = ::testing::Values("forward_sm90", "forward_sm80", "forward_simt");
constexpr auto kName =
    [](const ::testing::TestParamInfo<std::tuple<const char*, const char*>>& info) {
      return verify::test_name(std::string(std::get<1>(info.param)) + "_" +
                               std::get<0>(info.param));
    };

INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaHidden,
    ::testing::Combine(
        ::testing::Values(
            // Boxes of O; O by threads, as heads share a tile; one place for Q; split keys.
            "b2_n200_h2_d64_causal_bf16", "b1_n150_h1_d128_causal_softcap30_f16",
            "b3_n90_hq4_hk2_d64_causal_packed_bf16", "b1_n100_h1_d256_window30x9_sink_bf16",
            "b2_sq3_sk700_hq4_hk2_d64_causal_paged16_bf16",
            "b2_n140_h2_d40_causal_dropout0.3_seed4_f16/padded",
            "b1_n150_h2_d64_mask(blocks[query/32,key/32]!=0)_buffer(blocks:u8:5x5)_bf16",
            "b2_n100_h1_d64_mask(key<query-20||key==query/2)_alibi_bf16"),
        kKernels),
    kName);
INSTANTIATE_TEST_SUITE_P(
    CudaFewRows, CudaHidden,
    ::testing::Combine(::testing::Values("b2_sq3_sk700_hq4_hk2_d64_causal_paged16_bf16",
                                         "b1_sq5_sk900_hq2_hk1_d128_causal_softcap30_f16",
                                         "b3_sq4_sk300_hq4_hk2_d64_causal_packed_bf16",
                                         "b2_sq4_sk300_hq8_hk2_d64_causal_sink_bf16",
                                         "b2_sq4_sk60_hq8_hk2_d64_causal_list200_bf16"),
                       ::testing::Values("forward_sm80_few_rows")),
    kName);
INSTANTIATE_TEST_SUITE_P(
    CudaWide, CudaHidden,
    ::testing::Combine(::testing::Values("b1_sq20_sk100_hq4_hk1_d288_causal_paged16_bf16",
                                         "b1_sq20_sk60_hq34_hk1_d288_causal_paged16_list90_bf16"),
                       ::testing::Values("forward_sm90_wide", "forward_sm80_wide")),
    kName);
// Tiles of two blocks of 64 keys, of which a row may see one alone.
INSTANTIATE_TEST_SUITE_P(
    CudaGathered, CudaHidden,
    ::testing::Combine(
        ::testing::Values(
            "b1_sq150_sk420_h2_d64_mask(blocks[head,query/64,key/64]!=0)_buffer(blocks:u8:2x3x7)"
            "_bf16",
            "b1_n300_h2_d128_mask((blocks[query/64,key/64]!=0)&&key<=position)"
            "_buffer(blocks:u8:5x5)_f16",
            "b3_n200_hq4_hk2_d64_mask(blocks[batch,query/64,key/64]!=0)_buffer(blocks:u8:3x4x4)"
            "_alibi_packed_bf16",
            "b2_sq150_sk500_h2_d64_mask(blocks[query/64,key/192]!=0)_buffer(blocks:u8:3x3)"
            "_paged16_bf16"),
        ::testing::Values("forward_sm90")),
    kName);
INSTANTIATE_TEST_SUITE_P(
    CudaFloat, CudaHidden,
    ::testing::Combine(::testing::Values("b1_n100_h2_d300_dv40_causal_f32",
                                         "b1_n60_hq6_hk2_d20_causal_list90_f32"),
                       ::testing::Values("forward_simt")),
    kName);

// More than 128 queries, so that kernels which take 128 at a time have a block without a mask.
const auto kHidingScores = ::testing::Values(
    "b1_sq140_sk200_h1_d64_bias_bf16",
    "b1_sq140_sk200_h1_d64_score(score+t[key])_buffer(t:f32:200)_bf16",
    "b1_sq140_sk200_h1_d64_score(select(t[query,key]<-1.5,-inf,score))_buffer(t:f32:140x200)_bf16");
INSTANTIATE_TEST_SUITE_P(Cuda, CudaHiddenByScore, ::testing::Combine(kHidingScores, kKernels),
                         kName);
INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaHiddenByScoreBackward,
    ::testing::Combine(kHidingScores,
                       ::testing::Values("backward_sm80", "backward_sm80_deterministic",
                                         "backward_simt", "backward_flash_attention",
                                         "backward_standard")),
    kName);

INSTANTIATE_TEST_SUITE_P(
    CudaHopper, CudaHiddenByScoreBackward,
    ::testing::Combine(::testing::Values("b1_sq70_sk200_h1_d64_score(select(t[query,key]<-1.5,-inf,"
                                         "score))_buffer(t:f32:70x200)_bf16"),
                       ::testing::Values("backward_sm90")),
    kName);
// One warpgroup adds dV and dK of 128 columns element by element.
INSTANTIATE_TEST_SUITE_P(
    CudaHopperTwoScoreGroups, CudaHiddenByScoreBackward,
    ::testing::Combine(::testing::Values("b1_sq70_sk200_h1_d128_score(select(t[query,key]<-1.5,-inf"
                                         ",score))_buffer(t:f32:70x200)_bf16"),
                       ::testing::Values("backward_sm90/c2_n64_q4_o2_w128_g2_r24_x160")),
    kName);
INSTANTIATE_TEST_SUITE_P(
    CudaLists, CudaHiddenByScoreBackward,
    ::testing::Combine(::testing::Values("b1_sq70_sk20_h1_d64_score(select(t[query,key]<-1.5,-inf,"
                                         "score))_buffer(t:f32:70x20)_list90_bf16"),
                       ::testing::Values("backward_sm80_key_list", "backward_simt_key_list")),
    kName);
// dQ is computed in several rounds.
INSTANTIATE_TEST_SUITE_P(
    CudaWide, CudaHiddenByScoreBackward,
    ::testing::Combine(::testing::Values("b1_sq70_sk60_h1_d320_score(select(t[query,key]<-1.5,-inf,"
                                         "score))_buffer(t:f32:70x60)_bf16"),
                       ::testing::Values("backward_sm80")),
    kName);

// Blocks of keys are visited from the last to the first, with references of the softmax that follow
// the scores (docs/cuda-forward.md, "The softmax"). Here scores rise on the way, by so much that a
// reference must follow, or P as a float32 would overflow before it can.
class CudaFarScores : public CudaHidden {};

TEST_P(CudaFarScores, RiseFromBlockToBlock) {
  ATTN_NEEDS_GPU();
  for (const double least : {2.0, 30.0}) {
    CaseData data(verify::parse_case(std::get<0>(GetParam())), kSeed);
    for (std::int64_t b = 0; b < data.problem.batch; ++b) {
      const Rows keys{data, false, b};
      const std::int64_t n = keys.in_use();
      for (std::int64_t head = 0; head < data.problem.heads_k; ++head) {
        double factor = least;
        for (std::int64_t part = 7; part >= 0; --part, factor *= 1.5) {
          const std::int64_t key = part * n / 8;
          change(data.inputs.k, keys, key, key + 1, head, [&](double x) { return x * factor; });
        }
      }
    }
    EXPECT_EQ(compare(data), 0) << "factors from " << least << " on";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaFarScores,
    ::testing::Combine(::testing::Values("b1_n520_h2_d64_bf16", "b1_n700_h1_d128_causal_bf16",
                                         "b1_n300_h1_d256_sink_bf16", "b1_n520_h1_d64_f16",
                                         "b2_sq3_sk2000_hq4_hk2_d64_causal_bf16",
                                         "b3_n300_hq4_hk2_d64_window200x9_packed_bf16",
                                         "b1_n520_h1_d64_dropout0.2_seed3_bf16"),
                       ::testing::Values("forward_sm90")),
    kName);

// Pages all of whose keys the window hides from every query, as engines free them.
class CudaFreedPages : public CudaHidden {};

TEST_P(CudaFreedPages, AreNotLookedUp) {
  ATTN_NEEDS_GPU();
  CaseData data(verify::parse_case(std::get<0>(GetParam())), kSeed);
  const Outputs expected = reference_of(data);  // which copies all rows first
  constexpr std::int64_t kWindow = 100;
  const Problem& p = data.problem;
  const Tensor& table = data.inputs.page_table;
  int freed = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t seen = Rows{data, false, b}.in_use() - p.seqlen_q - kWindow;
    for (std::int64_t i = 0; (i + 1) * p.page_size <= seen; ++i) {
      constexpr std::int32_t kNonsense[] = {-1, std::numeric_limits<std::int32_t>::max(),
                                            std::numeric_limits<std::int32_t>::min(), 123456789};
      static_cast<std::int32_t*>(table.data)[b * table.strides[0] + i] = kNonsense[freed++ % 4];
    }
  }
  ASSERT_GT(freed, 20);
  compare(data, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaFreedPages,
    ::testing::Combine(
        ::testing::Values("b2_sq4_sk600_hq2_hk1_d64_window100x0_paged16_bf16/usedk600,491",
                          "b1_sq70_sk900_h1_d128_window100x0_paged8_f16/usedk900"),
        kKernels),
    kName);

}  // namespace
}  // namespace attn::cuda
