// Sequences of different lengths in one call: each runs as its own length asks, whatever the
// others are, and keys past a length cost nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.hpp"

namespace attn::cpu::testing {
namespace {

constexpr std::int64_t kHeadsQ = 8, kHeadsK = 2, kDim = 64;

// Runs everything on the caller, and counts what it is given.
class TaskSpy final : public Executor {
 public:
  explicit TaskSpy(int workers) : workers_(workers) {}
  int concurrency() const noexcept override { return workers_; }
  void parallel_for(std::int64_t count,
                    const std::function<void(std::int64_t, int)>& body) override {
    most = std::max(most, count);
    for (std::int64_t i = 0; i < count; ++i) body(i, static_cast<int>(i));
  }
  std::int64_t most = 0;  // of the largest loop

 private:
  int workers_;
};

std::vector<float> random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& v : x) v = normal(engine);
  return x;
}

// A batch whose queries are packed: sequence b has queries[b] rows, its own whatever the others
// are, and keys[b] of a cache of `cache` keys.
struct Batch {
  Batch(const std::vector<std::int32_t>& queries, std::vector<std::int32_t> its_keys,
        std::int64_t cache)
      : lengths(queries), keys(std::move(its_keys)), starts{0} {
    const auto batch = static_cast<std::int64_t>(queries.size());
    for (std::size_t b = 0; b < queries.size(); ++b) {
      starts.push_back(starts.back() + queries[b]);
      const auto own = static_cast<unsigned>(b);
      append(q, queries[b] * kHeadsQ * kDim, 3 * own);
      append(k, cache * kHeadsK * kDim, 3 * own + 1);
      append(v, cache * kHeadsK * kDim, 3 * own + 2);
    }
    o.assign(q.size(), NAN);
    inputs = {.q = tensor(q.data(), {starts.back(), kHeadsQ, kDim}),
              .k = tensor(k.data(), {batch, cache, kHeadsK, kDim}),
              .v = tensor(v.data(), {batch, cache, kHeadsK, kDim}),
              .cu_seqlens_q = tensor(starts.data(), {batch + 1}),
              .seqused_k = tensor(keys.data(), {batch})};
    outputs = {.o = tensor(o.data(), {starts.back(), kHeadsQ, kDim})};
    problem = {.seqlen_q = *std::max_element(queries.begin(), queries.end()),
               .layout_q = Layout::packed,
               .mask = causal()};
    problem = complete(problem, inputs);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void run(const PlanOptions& options = {}, const Context& context = {}) const {
    forward(make_plan(problem, Phase::forward, options, context), inputs, outputs, context);
  }
  // O of sequence b.
  std::vector<float> result(std::size_t b) const {
    const std::int64_t row = kHeadsQ * kDim;
    return {o.begin() + starts[b] * row, o.begin() + starts[b + 1] * row};
  }

  std::vector<std::int32_t> lengths, keys, starts;
  std::vector<float> q, k, v, o;
  Inputs inputs;
  Outputs outputs;
  Problem problem;

 private:
  static void append(std::vector<float>& to, std::int64_t count, unsigned seed) {
    const std::vector<float> own = random_floats(count, seed);
    to.insert(to.end(), own.begin(), own.end());
  }
};

// What decodes beside a chunk of 128 queries has the bits of a batch in which all decode, so it was
// computed in the same way; and the chunk those of chunks alone.
TEST(Lengths, EachSequenceRunsAsItsOwnAsks) {
  constexpr std::int64_t kCache = 1100;
  const std::vector<std::int32_t> keys{1100, 700, 900, 1100};
  for (const InstructionSetInfo& set : instruction_sets()) {
    if (!set.available) continue;
    const Context context{.isa = set.isa};
    Batch mixed({1, 2, 128, 1}, keys, kCache), decode({1, 2, 2, 1}, keys, kCache);
    Batch chunks({128, 128, 128, 128}, keys, kCache);
    mixed.run({}, context);
    decode.run({}, context);
    chunks.run({}, context);
    for (const std::size_t b : {0, 1, 3}) {
      EXPECT_EQ(mixed.result(b), decode.result(b)) << b << " " << name(set.isa);
    }
    EXPECT_EQ(mixed.result(2), chunks.result(2)) << name(set.isa);
    // The decoding verbs add in another order than tiles do: the test would see the other path.
    PlanOptions by_tiles{.algorithm = Algorithm::flash_attention_2};
    Batch tiles({1, 2, 128, 1}, keys, kCache);
    tiles.run(by_tiles, context);
    EXPECT_NE(mixed.result(0), tiles.result(0)) << name(set.isa);
    EXPECT_EQ(mixed.result(2), tiles.result(2)) << name(set.isa);
  }
}

// One plan, and others beside: what a sequence gives does not depend on their lengths.
TEST(Lengths, OthersChangeNoBit) {
  constexpr std::int64_t kCache = 900;
  Batch first({1, 4, 64, 0, 9}, {900, 300, 64, 70, 900}, kCache);
  Batch second({1, 64, 1, 30, 9}, {900, 64, 900, 900, 900}, kCache);
  first.run();
  second.run();
  EXPECT_EQ(first.result(0), second.result(0));
  EXPECT_EQ(first.result(4), second.result(4));
}

// A plan that the caller changed runs all sequences as it says.
TEST(Lengths, AChangedPlanIsHonoured) {
  const std::vector<std::int32_t> keys{700, 700};
  Batch batch({1, 100}, keys, 700), named({1, 100}, keys, 700);
  Plan plan = make_plan(batch.problem, Phase::forward);
  plan.algorithm = Algorithm::standard;
  const PlanOptions options{.algorithm = Algorithm::standard};
  const Plan by_name = make_plan(named.problem, Phase::forward, options);
  forward(plan, batch.inputs, batch.outputs);
  forward(by_name, named.inputs, named.outputs);
  EXPECT_NE(make_plan(batch.problem, Phase::forward).algorithm, plan.algorithm);
  EXPECT_EQ(batch.o, named.o);
  plan.threads = 1;  // nor does the number of threads change a bit
  Batch again({1, 100}, keys, 700);
  forward(plan, again.inputs, again.outputs);
  EXPECT_EQ(again.o, batch.o);
}

// 100 keys of a cache of 8192 are one part for one worker, and give the bits of a cache of 100.
TEST(Lengths, KeysPastALengthCostNoTask) {
  constexpr std::int64_t kCache = 8192;
  const auto run = [](Batch& batch) {
    const auto spy = std::make_shared<TaskSpy>(64);
    batch.run({}, {.executor = spy});
    return spy->most;
  };
  Batch all({1}, {8192}, kCache), used({1}, {100}, kCache), two({1, 1}, {100, 700}, kCache);
  EXPECT_GT(run(all), 16);
  EXPECT_EQ(run(used), 2);  // merging has a task for each of the two heads
  EXPECT_EQ(run(two), 4);

  Batch view({1}, {100}, 100);
  std::copy_n(used.k.begin(), view.k.size(), view.k.begin());
  std::copy_n(used.v.begin(), view.v.size(), view.v.begin());
  run(view);
  EXPECT_EQ(used.o, view.o);
}

}  // namespace
}  // namespace attn::cpu::testing
