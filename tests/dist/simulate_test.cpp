// What is predicted of several GPUs, where it can be said by hand.
#include "attn/dist/simulate.hpp"

#include <gtest/gtest.h>

#include "attn/mask.hpp"

namespace attn::dist {
namespace {

constexpr std::int64_t kRows = 16384;
constexpr double kWork = 1e15;  // operations a second
constexpr double kClose = 1e-9;

Plan plan_of(int ranks, const expr::Expr& mask = {}) {
  Problem p{.batch = 1, .seqlen_q = kRows, .seqlen_k = kRows};
  p.dtype = DType::bf16;
  p.heads_q = p.heads_k = 1;  // one group of heads: nothing hides its copies
  p.head_dim = p.head_dim_v = 128;
  p.mask = mask;
  return make_plan(p, ranks, {.deal = Deal::contiguous, .chunk = 1024});
}

// Copies take a second a byte.
Machine machine(double seconds_of_byte) {
  return {.copies = {{1, seconds_of_byte}, {1e12, 1e12 * seconds_of_byte}},
          .far = {{1, 10 * seconds_of_byte}, {1e12, 1e13 * seconds_of_byte}},
          .forward = kWork,
          .backward = kWork};
}

TEST(Simulate, OneRankAndLinksWithoutLimitExposeNothing) {
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    EXPECT_EQ(predict(plan_of(1), phase, machine(1)).exposed(), 0);
    const Prediction free = predict(plan_of(4), phase, machine(0));
    EXPECT_NEAR(free.slowest, free.ideal, kClose * free.ideal);
    // Under a causal mask the last of ranks in order has most.
    const Prediction causal = predict(plan_of(4, attn::causal()), phase, machine(0));
    EXPECT_GT(causal.slowest, 1.5 * causal.ideal);
    EXPECT_NEAR(causal.slowest, causal.busiest, kClose * causal.busiest);
  }
}

TEST(Simulate, ForwardWaitsForTheKeysOfItsGroup) {
  constexpr double kSeconds = 1e-11;
  const Prediction p = predict(plan_of(4), Phase::forward, machine(kSeconds));
  // K and V of three ranks, 4096 rows each.
  const double copies = 3 * 4096 * 2 * 128 * 2 * kSeconds;
  EXPECT_NEAR(p.exposed(), copies, kClose * copies);
}

TEST(Simulate, BackwardWaitsForAllKeysAndForSums) {
  constexpr double kSeconds = 1e-11;
  // K and V of the other rank, 8192 rows; twice as much comes home, in f32.
  const double copies = 3 * 8192 * 2 * 128 * 2 * kSeconds;
  EXPECT_NEAR(predict(plan_of(2), Phase::backward, machine(kSeconds)).exposed(), copies,
              kClose * copies);
}

TEST(Simulate, KernelsBeginWhenRanksHaveMetAndOwnRowsAreCopied) {
  constexpr double kStart = 1e-3, kOwnRows = 1e9;
  Machine alone = machine(0);
  alone.start = kStart;
  alone.own_rows = kOwnRows;
  const double own = 8192 * 2 * 128 * 2 / kOwnRows;  // K and V of a rank
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    const double exposed = predict(plan_of(2), phase, alone).exposed();
    EXPECT_NEAR(exposed, kStart + own, kClose * exposed);
  }
}

// A chunk enters a node once, and its sums leave it once.
TEST(Simulate, ChunksPassBetweenNodesOnce) {
  Machine nodes = machine(1e-12);
  nodes.node = 2;
  const double all = 2.0 * kRows * 128 * 2;  // K and V
  for (const int ranks : {4, 6}) {
    const int others = ranks / nodes.node - 1;  // nodes that a chunk enters
    const double crossings = all * others;
    const Prediction forward = predict(plan_of(ranks), Phase::forward, nodes);
    EXPECT_NEAR(forward.far_bytes, crossings, kClose * all) << ranks;
    const Prediction backward = predict(plan_of(ranks), Phase::backward, nodes);
    EXPECT_NEAR(backward.far_bytes, 3 * crossings, kClose * all) << ranks;
    EXPECT_EQ(predict(plan_of(ranks), Phase::forward, machine(1e-12)).far_bytes, 0);
    EXPECT_GT(forward.slowest, predict(plan_of(ranks), Phase::forward, machine(1e-12)).slowest);
  }
}

TEST(Simulate, CopiesAreOnTheLinesBetweenThoseMeasured) {
  const std::vector<Copy> copies{{100, 1}, {200, 2}, {400, 6}};
  EXPECT_EQ(copy_seconds(copies, 0), 0);
  EXPECT_EQ(copy_seconds(copies, 50), 1);
  EXPECT_EQ(copy_seconds(copies, 150), 1.5);
  EXPECT_EQ(copy_seconds(copies, 300), 4);
  EXPECT_EQ(copy_seconds(copies, 800), 12);
  EXPECT_EQ(copy_seconds({}, 5), 0);
}

}  // namespace
}  // namespace attn::dist
