// PlanOptions::batch_invariant on a GPU: a sequence has the same bits of O and LSE alone and within
// a batch of others, whatever K, V and the page table have beyond its length.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/gpu.hpp"
#include "cuda/rows.hpp"
#include "verify/data.hpp"

namespace attn::cuda {
namespace {

using verify::Case;
using verify::CaseData;
using verify::load_element;
using verify::store_element;

constexpr std::uint64_t kSeed = 11;

struct Example {
  const char* batch;
  const char* kernel;
};

void copy_rows(const CaseData& from, const CaseData& to, std::int64_t b, bool like_q,
               Tensor Inputs::*of) {
  const Rows source{from, like_q, b}, target{to, like_q, 0};
  const Tensor &x = from.inputs.*of, &y = to.inputs.*of;
  const std::int64_t heads = like_q ? from.problem.heads_q : from.problem.heads_k;
  const std::int64_t columns = x.shape[static_cast<std::size_t>(x.rank) - 1];
  for (std::int64_t row = 0; row < target.in_use(); ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < columns; ++i) {
        store_element(y, target.element(y, row, head, i),
                      load_element(x, source.element(x, row, head, i)));
      }
    }
  }
}

// Sequence b of a batch by itself: K, V and the page table end where it does.
Case alone(const Case& c, const CaseData& batch, std::int64_t b) {
  Case one = c;
  one.problem.batch = 1;
  const Rows queries{batch, true, b}, keys{batch, false, b};
  one.problem.seqlen_k = keys.in_use();
  if (one.problem.layout_k == Layout::paged) {
    const std::int64_t size = one.problem.page_size;
    one.problem.seqlen_k = std::max<std::int64_t>(1, (keys.in_use() + size - 1) / size) * size;
  }
  const auto count = [](const Rows& rows) { return static_cast<std::int32_t>(rows.count()); };
  const auto used = [](const Rows& rows) { return static_cast<std::int32_t>(rows.in_use()); };
  if (one.problem.layout_q == Layout::packed) one.hints.cu_q = {0, count(queries)};
  if (one.problem.layout_k == Layout::packed) one.hints.cu_k = {0, count(keys)};
  if (!c.hints.used_q.empty()) one.hints.used_q = {used(queries)};
  if (!c.hints.used_k.empty()) one.hints.used_k = {used(keys)};
  return one;
}

void fill_alone(const CaseData& batch, CaseData& one, std::int64_t b) {
  copy_rows(batch, one, b, true, &Inputs::q);
  copy_rows(batch, one, b, false, &Inputs::k);
  copy_rows(batch, one, b, false, &Inputs::v);
  if (!batch.inputs.sink.given()) return;
  for (std::int64_t head = 0; head < batch.problem.heads_q; ++head) {
    store_element(one.inputs.sink, head * one.inputs.sink.strides[0],
                  load_element(batch.inputs.sink, head * batch.inputs.sink.strides[0]));
  }
}

std::vector<double> results(const CaseData& data, std::int64_t b) {
  const Rows rows{data, true, b};
  std::vector<double> all;
  for (std::int64_t head = 0; head < data.problem.heads_q; ++head) {
    for (std::int64_t row = 0; row < rows.in_use(); ++row) {
      for (std::int64_t i = 0; i < data.problem.head_dim_v; ++i) {
        all.push_back(load_element(data.outputs.o, rows.element(data.outputs.o, row, head, i)));
      }
      all.push_back(load_element(data.outputs.lse, rows.lse(data.outputs.lse, row, head)));
    }
  }
  return all;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// Sequences whose bits are not those that they have alone.
std::vector<std::int64_t> different(const char* text, const PlanOptions& options) {
  const Case c = verify::parse_case(text);
  CaseData batch(c, kSeed);
  verify::forward_on_device(batch, options, {}, true);
  std::vector<std::int64_t> found;
  for (std::int64_t b = 0; b < batch.problem.batch; ++b) {
    CaseData one(alone(c, batch, b), kSeed);
    fill_alone(batch, one, b);
    verify::forward_on_device(one, options, {}, true);
    const std::vector<double> own = results(one, 0);
    EXPECT_TRUE(std::ranges::none_of(own, [](double x) { return std::isnan(x); }));
    if (!same_bits(results(batch, b), own)) found.push_back(b);
  }
  return found;
}

class CudaBatchInvariant : public ::testing::TestWithParam<Example> {};

TEST_P(CudaBatchInvariant, SequencesHaveTheBitsThatTheyHaveAlone) {
  ATTN_NEEDS_GPU();
  ATTN_NEEDS_KERNEL(verify::parse_case(GetParam().batch).problem);
  const auto [batch, kernel] = GetParam();
  EXPECT_EQ(different(batch, {.device = kGpu, .kernel = kernel, .batch_invariant = true}),
            std::vector<std::int64_t>());
}

constexpr const char* kDecoding = "b5_sq1_sk4096_hq8_hk2_d64_paged16_bf16/usedk4000,700,64,1,2500";

TEST(CudaBatchInvariant, WithoutItBitsFollowFromTheBatch) {
  ATTN_NEEDS_GPU();
  EXPECT_FALSE(different(kDecoding, {.device = kGpu}).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, CudaBatchInvariant,
    ::testing::Values(
        Example{kDecoding, "forward_sm80_few_rows"},
        Example{"b3_sq2_sk3000_hq4_hk1_d64_causal_softcap30_sink_f16/usedk3000,257,1100",
                "forward_sm80_few_rows"},
        Example{"b3_sq3_sk2600_hq4_hk4_d128_packed_bf16/cuq0,3,4,6_cuk0,2600,2700,4200",
                "forward_sm80_few_rows"},
        Example{"b3_sq40_sk2600_hq2_hk1_d64_causal_packed_bf16/cuq0,40,41,60_cuk0,2600,2700,4200",
                "forward_sm80"},
        Example{"b3_sq40_sk2600_hq2_hk1_d64_causal_packed_bf16/cuq0,40,41,60_cuk0,2600,2700,4200",
                "forward_sm90"},
        Example{"b4_sq60_sk1200_hq4_hk1_d64_causal_packedq_paged16_bf16/"
                "cuq0,60,61,65,70_usedk1200,700,40,64",
                ""},
        Example{"b2_sq5_sk2100_hq2_hk1_d32_paged8_window300x0/usedk2100,1300", "forward_simt"}),
    [](const ::testing::TestParamInfo<Example>& info) {
      return verify::test_name(std::string(info.param.kernel) + "_" + info.param.batch);
    });

// What the option is for: without it the number of splits follows from the batch and from the
// width of the table.
TEST(CudaBatchInvariant, PlansDifferWithoutItAndAgreeWithIt) {
  ATTN_NEEDS_GPU();
  const Problem one = parse_problem("b1_sq1_sk2048_hq8_hk2_d64_paged16_bf16");
  const Problem many = parse_problem("b64_sq1_sk65536_hq8_hk2_d64_paged16_bf16");
  const auto splits = [](const Problem& problem, bool invariant) {
    return make_plan(problem, Phase::forward, {.device = kGpu, .batch_invariant = invariant})
        .num_splits;
  };
  EXPECT_NE(splits(one, false), splits(many, false));
  EXPECT_EQ(splits(one, true), splits(many, true));
}

TEST(CudaBatchInvariant, BackwardRefusesIt) {
  ATTN_NEEDS_GPU();
  const Problem problem = parse_problem("b1_n64_h1_d64_bf16");
  try {
    make_plan(problem, Phase::backward, {.device = kGpu, .batch_invariant = true});
    FAIL() << "made a plan";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("batch_invariant is true"), std::string::npos);
  }
}

}  // namespace
}  // namespace attn::cuda
