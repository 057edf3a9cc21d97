// What plans of several ranks say and refuse.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "attn/dist.hpp"
#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "dist/head_groups.hpp"
#include "dist/local_problem.hpp"
#include "dist/plan_data.hpp"

namespace attn::dist {
namespace {

Problem causal_problem(std::int64_t rows) {
  Problem p{.batch = 1, .seqlen_q = rows, .seqlen_k = rows, .heads_q = 4, .heads_k = 2};
  p.head_dim = p.head_dim_v = 16;
  p.mask = causal();
  return p;
}

std::string refusal(const Problem& problem, int ranks, const Options& options,
                    ErrorCode code = ErrorCode::invalid_argument) {
  try {
    make_plan(problem, ranks, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing was refused";
}

TEST(DistPlan, RowsAndGatheredKeysAreThoseOfTheMask) {
  const Plan plan = make_plan(causal_problem(256), 2, {.deal = Deal::zigzag, .chunk = 64});
  EXPECT_EQ(plan.rows(0), (std::vector<Rows>{{0, 64}, {192, 256}}));
  EXPECT_EQ(plan.rows(1), (std::vector<Rows>{{64, 192}}));
  EXPECT_EQ(plan.gathered(0), (std::vector<Rows>{{0, 256}}));
  EXPECT_EQ(plan.gathered(1), (std::vector<Rows>{{0, 192}}));
  // 64 rows of 2 heads, 16 + 16 floats; what a rank sent comes back as sums.
  const double bytes = 64.0 * 2 * 32 * 4;
  EXPECT_EQ(plan.bytes(0, 1, Phase::forward), bytes);
  EXPECT_EQ(plan.bytes(1, 0, Phase::forward), 2 * bytes);
  EXPECT_EQ(plan.bytes(0, 1, Phase::backward), 3 * bytes);
  EXPECT_EQ(plan.bytes(1, 1, Phase::forward), 0);
  EXPECT_EQ(plan.balance(), 1);
}

TEST(DistPlan, AWindowMovesItsNeighboursAlone) {
  Problem p = causal_problem(512);
  p.mask = window(63, 0);
  const Plan plan = make_plan(p, 4, {.deal = Deal::contiguous, .chunk = 64});
  EXPECT_EQ(plan.gathered(2), (std::vector<Rows>{{192, 384}}));
  EXPECT_GT(plan.bytes(1, 2, Phase::forward), 0);
  EXPECT_EQ(plan.bytes(0, 2, Phase::forward), 0);
}

// Sequences begin and end within chunks, and several lie in one.
TEST(DistPlan, AreasAreThoseOfTheSequences) {
  std::mt19937_64 random(1);
  for (int ranks = 1; ranks <= 5; ++ranks) {
    std::vector<std::int32_t> starts{0};
    auto lengths = std::uniform_int_distribution<std::int32_t>(0, 300);
    for (int b = 0; b < 9; ++b) starts.push_back(starts.back() + lengths(random));
    Problem p = causal_problem(300);
    p.batch = 9;
    p.mask = {};
    p.layout_q = p.layout_k = Layout::packed;
    const Plan plan = make_plan(
        p, ranks, {.chunk = 64, .lengths = {.cu_seqlens_q = starts, .cu_seqlens_k = starts}});
    for (int r = 0; r < ranks; ++r) {
      double area = 0;
      RowList seen;
      for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
        const Rows sequence{starts[b], starts[b + 1]};
        const auto rows = count(common(plan.rows(r), {sequence}));
        area += static_cast<double>(p.heads_q * rows * (sequence.end - sequence.begin));
        if (rows > 0) append(seen, sequence);
      }
      EXPECT_EQ(plan.area(r), area) << "rank " << r << " of " << ranks;
      EXPECT_EQ(count(common(plan.gathered(r), seen)), count(seen));
      EXPECT_LE(count(plan.gathered(r)), count(seen) + 2 * 63 * 9);
    }
  }
}

// All pairs of 16384 chunks were in memory: 2 GB, which took 20 s.
TEST(DistPlan, AreasOfThousandsOfRanksAreSmall) {
  const auto peak_kilobytes = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long before = peak_kilobytes();
  for (const auto& mask : {expr::Expr{}, causal()}) {
    Problem p = causal_problem((std::int64_t{1} << 31) - 1);
    p.mask = mask;
    EXPECT_GT(make_plan(p, 4096, Options{}).balance(), 0.98);
  }
  EXPECT_LE(peak_kilobytes() - before, 512 << 10);
}

TEST(DistPlan, ManyHeadsAreCountedInGroups) {
  Problem p = causal_problem(64);
  p.heads_q = p.heads_k = 2147483647;
  p.mask = expr::symbols().head >= 0;
  EXPECT_EQ(make_plan(p, 1, Options{}).area(0), 2147483647.0 * 64 * 64);
  p.heads_q = p.heads_k = 4;
  p.mask = expr::symbols().head >= 3;
  EXPECT_EQ(make_plan(p, 1, Options{}).area(0), 64 * 64);
}

TEST(DistPlan, MasksAreWrittenAnewForTheRowsOfARank) {
  const Plan plan = make_plan(causal_problem(256), 2, {.deal = Deal::zigzag, .chunk = 64});
  const PlanData& data = plan.data();
  const LocalProblem local =
      local_problem(data.problem, data.q, data.k, data.rows[0], data.gathered[0]);
  EXPECT_EQ(expr::to_string(local.problem.mask),
            expr::to_string(expr::parse("key <= select(query < 64, query, query + 128)")));
  EXPECT_EQ(local.problem.seqlen_q, 128);
  EXPECT_EQ(local.problem.seqlen_k, 256);
  // Rows 64-127 here are 192-255: those see the keys from 128 on in part, rows 0-63 none of them.
  expr::Tile tile{
      .query_max = 63, .key_min = 128, .key_max = 191, .seqlen_q = 128, .seqlen_k = 256};
  EXPECT_EQ(expr::classify(local.problem.mask, tile), expr::Coverage::empty);
  tile.query_min = 64;
  tile.query_max = 127;
  EXPECT_EQ(expr::classify(local.problem.mask, tile), expr::Coverage::full);
}

TEST(DistPlan, AMaskThatTheCpuCannotReadCountsAsFull) {
  Problem p = causal_problem(128);
  p.mask = documents(tensor(static_cast<const std::int32_t*>(nullptr), {128}));
  const Plan blind = make_plan(p, 2, {.chunk = 16});
  EXPECT_EQ(blind.area(0), 128.0 * 64 * 4);
  ASSERT_FALSE(blind.reasons().empty());
  EXPECT_NE(to_string(blind).find("which the CPU cannot read: every key counts as seen"),
            std::string::npos)
      << to_string(blind);
  std::vector<std::int32_t> ids(128, 0);
  std::fill(ids.begin() + 64, ids.end(), 1);
  const Plan seeing =
      make_plan(p, 2, {.chunk = 16, .buffers = {{"ids", tensor(ids.data(), {128})}}});
  EXPECT_EQ(seeing.area(0), 64.0 * 64 * 4);
}

TEST(DistPlan, TextNamesRanksRowsAndTraffic) {
  const std::string text =
      to_string(make_plan(causal_problem(256), 2, {.deal = Deal::zigzag, .chunk = 64}));
  EXPECT_NE(text.find("rank 0: rows 0-63 192-255"), std::string::npos) << text;
  EXPECT_NE(text.find("from rank 1: keys 64-191"), std::string::npos) << text;
}

TEST(DistPlan, RefusesByName) {
  const Problem p = causal_problem(64);
  EXPECT_NE(refusal(p, 0, {}).find("ranks is 0"), std::string::npos);
  EXPECT_NE(refusal(p, 2, {.chunk = -1}).find("chunk is -1"), std::string::npos);
  EXPECT_NE(refusal(causal_problem(8192), 2, {.chunk = 1}).find("chunk is 1 of 8192 rows"),
            std::string::npos);
  Problem many = causal_problem(1);  // whose places would take 100 GB
  many.heads_q = many.heads_k = 1;
  many.batch = (std::int64_t{1} << 31) - 1;
  EXPECT_NE(refusal(many, 2, {}, ErrorCode::unsupported).find("batch is 2147483647"),
            std::string::npos);
  Problem typed = p;
  typed.type_k = CacheType::bf16;
  const Options on_gpu{.local = {.device = {DeviceType::cuda, 0}}};
  EXPECT_NE(refusal(typed, 2, on_gpu, ErrorCode::unsupported).find("type_k is bf16"),
            std::string::npos);
  EXPECT_NE(
      refusal(p, 2, {.lengths = {.seqused_q = {65}}}).find("seqused_q[0] of the lengths is 65"),
      std::string::npos);
  EXPECT_NE(refusal(p, 2, {.lengths = {.cu_seqlens_q = {0, 64}}}).find("cu_seqlens_q"),
            std::string::npos);
  Problem packed = p;
  packed.layout_q = packed.layout_k = Layout::packed;
  EXPECT_NE(refusal(packed, 2, {}).find("cu_seqlens_q of the lengths has 0 numbers"),
            std::string::npos);
  Problem prefix = p;
  prefix.seqlen_prefix = 5;
  EXPECT_NE(refusal(prefix, 2, {}, ErrorCode::unsupported).find("seqlen_prefix is 5"),
            std::string::npos);
  Problem paged = p;
  paged.layout_k = Layout::paged;
  paged.page_size = 16;
  EXPECT_NE(refusal(paged, 2, {}, ErrorCode::unsupported).find("layout_k is paged"),
            std::string::npos);
  Problem own = p;
  own.mask = expr::Buffer("dist_x", tensor(static_cast<const std::int32_t*>(nullptr),
                                           {64}))[expr::symbols().key] > 0;
  EXPECT_NE(refusal(own, 2, {}).find("buffer 'dist_x'"), std::string::npos);
  EXPECT_THROW(make_plan(p, 2).rows(2), Error);
  EXPECT_THROW(in_process(0), Error);
  EXPECT_THROW(local({}), Error);
  EXPECT_THROW(local({Device{}}), Error);
  EXPECT_THROW(forward(make_plan(p, 2), {}, {}), Error);
}

// Every head is in one group, and the first group's copy, which nothing hides, is small.
TEST(DistPlan, HeadsAreWorkedOnInGroups) {
  Problem p = causal_problem(16384);
  p.dtype = DType::bf16;
  p.head_dim = p.head_dim_v = 128;
  for (const auto& [heads_q, heads_k] : {std::pair{64, 8}, {32, 32}, {8, 1}, {64, 3}}) {
    p.heads_q = heads_k * (heads_q / heads_k);
    p.heads_k = heads_k;
    const Plan plan = make_plan(p, 2, {.rates = {.flops = 5e14, .bytes = 3e11}});
    const std::vector<HeadGroup> groups = head_groups(plan.data(), Phase::forward);
    ASSERT_LE(groups.size(), kMostHeadGroups);
    std::int64_t heads = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      EXPECT_EQ(groups[g].first, heads);
      EXPECT_GT(groups[g].count, 0);
      EXPECT_FALSE(g > 0 && groups[g].packed && !groups[g - 1].packed);
      heads += groups[g].count;
    }
    EXPECT_EQ(heads, heads_k);
    EXPECT_EQ(head_groups(plan.data(), Phase::backward).size(), 1U);
    if (heads_k == 1) continue;
    EXPECT_TRUE(groups.front().packed);
    EXPECT_LE(groups.front().count * 8, std::max(8, heads_k));
  }
  const Problem of_head = parse_problem("b1_n4096_hq32_hk4_d64_causal_alibi_bf16");
  EXPECT_EQ(head_groups(make_plan(of_head, 2).data(), Phase::forward).size(), 1U);
}

// NOLINTBEGIN(bugprone-use-after-move,performance-move-const-arg): what is tested
TEST(DistPlan, WhatWasMovedFromIsWhatItWas) {
  const Problem p = causal_problem(256);
  Options options{.chunk = 64, .lengths = {.seqused_q = {70}, .seqused_k = {70}}};
  const Options moved_options = std::move(options);
  Plan plan = make_plan(p, 2, options);
  const Plan expected = make_plan(p, 2, moved_options);
  EXPECT_EQ(plan.rows(0), expected.rows(0));
  EXPECT_EQ(plan.area(0) + plan.area(1), expected.area(0) + expected.area(1));
  EXPECT_LT(plan.area(0) + plan.area(1), 4 * 128 * 129 / 2);  // of 70 queries; there are 256

  const Plan moved_plan = std::move(plan);
  EXPECT_EQ(plan.rows(1), moved_plan.rows(1));

  std::vector<Group> groups = in_process(2);
  const Group moved_group = std::move(groups[1]);
  EXPECT_EQ(groups[1].rank(), 1);
}
// NOLINTEND(bugprone-use-after-move,performance-move-const-arg)

}  // namespace
}  // namespace attn::dist
