// Keys by list against a definition of their own: what an entry means, that memory of keys which no
// list names is not read, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/context.hpp"
#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "attn/run.hpp"
#include "conformance/support.hpp"

namespace attn {
namespace {

constexpr std::int64_t kBatch = 2, kQueries = 3, kKeys = 150, kHeadsQ = 6, kHeadsK = 2;
constexpr std::int64_t kDim = 24, kDimV = 16, kList = 70, kGroup = kHeadsQ / kHeadsK;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A dense call in float32, whose lists a test fills.
struct Call {
  std::mt19937 random{20261129};
  std::vector<float> q = normal(kBatch * kQueries * kHeadsQ * kDim);
  std::vector<float> k = normal(kBatch * kKeys * kHeadsK * kDim);
  std::vector<float> v = normal(kBatch * kKeys * kHeadsK * kDimV);
  std::vector<float> o = std::vector<float>(kBatch * kQueries * kHeadsQ * kDimV, kNaN);
  std::vector<float> lse = std::vector<float>(kBatch * kHeadsQ * kQueries, kNaN);
  std::vector<std::int32_t> lists;  // [kBatch, heads, kQueries, kList]
  std::int64_t heads;
  std::vector<std::int32_t> used{kKeys, 100};
  Problem problem{.key_list = kList};

  explicit Call(std::int64_t list_heads = kHeadsK)
      : lists(static_cast<std::size_t>(kBatch * list_heads * kQueries * kList), -1),
        heads(list_heads) {}

  std::vector<float> normal(std::int64_t count) {
    std::normal_distribution<float> distribution;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = distribution(random);
    return values;
  }
  std::int32_t& entry(std::int64_t b, std::int64_t head_k, std::int64_t i, std::int64_t j) {
    const std::int64_t head = heads == 1 ? 0 : head_k;
    return lists[static_cast<std::size_t>(((b * heads + head) * kQueries + i) * kList + j)];
  }
  // Each entry is fill(number of the entry).
  template <class Fill>
  void fill(const Fill& value) {
    for (std::size_t n = 0; n < lists.size(); ++n) lists[n] = value(static_cast<std::int64_t>(n));
  }
  Inputs inputs() {
    Inputs in;
    in.q = tensor(q.data(), {kBatch, kQueries, kHeadsQ, kDim});
    in.k = tensor(k.data(), {kBatch, kKeys, kHeadsK, kDim});
    in.v = tensor(v.data(), {kBatch, kKeys, kHeadsK, kDimV});
    in.seqused_k = tensor(used.data(), {kBatch});
    in.key_list = tensor(lists.data(), {kBatch, heads, kQueries, kList});
    return in;
  }
  Outputs outputs() {
    return {.o = tensor(o.data(), {kBatch, kQueries, kHeadsQ, kDimV}),
            .lse = tensor(lse.data(), {kBatch, kHeadsQ, kQueries})};
  }
  void run(const PlanOptions& options = {}, const Context& context = {}) {
    std::fill(o.begin(), o.end(), kNaN);
    std::fill(lse.begin(), lse.end(), kNaN);
    forward(problem, inputs(), outputs(), options, context);
  }

  float lse_of(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return lse[static_cast<std::size_t>((b * kHeadsQ + h) * kQueries + i)];
  }
  float o_of(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t c) const {
    return o[static_cast<std::size_t>(((b * kQueries + i) * kHeadsQ + h) * kDimV + c)];
  }

  // What the definition says, in double. sees(b, h, i, key): the mask.
  template <class Sees>
  void expect_definition(const Sees& sees, const std::string& what) {
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t h = 0; h < kHeadsQ; ++h) {
        for (std::int64_t i = 0; i < kQueries; ++i) {
          const std::int64_t head_k = h / kGroup;
          double sum = 0;
          std::vector<double> values(kDimV);
          for (std::int64_t j = 0; j < kList; ++j) {
            const std::int64_t key = entry(b, head_k, i, j);
            if (key < 0 || key >= used[static_cast<std::size_t>(b)] || !sees(b, h, i, key)) {
              continue;
            }
            double s = 0;
            for (std::int64_t c = 0; c < kDim; ++c) {
              s +=
                  double{
                      q[static_cast<std::size_t>(((b * kQueries + i) * kHeadsQ + h) * kDim + c)]} *
                  k[static_cast<std::size_t>(((b * kKeys + key) * kHeadsK + head_k) * kDim + c)];
            }
            const double weight = std::exp(s / std::sqrt(double{kDim}));
            sum += weight;
            for (std::int64_t c = 0; c < kDimV; ++c) {
              values[static_cast<std::size_t>(c)] +=
                  weight *
                  v[static_cast<std::size_t>(((b * kKeys + key) * kHeadsK + head_k) * kDimV + c)];
            }
          }
          const std::string where = what + ", batch " + std::to_string(b) + ", head " +
                                    std::to_string(h) + ", query " + std::to_string(i);
          if (sum == 0) {
            ASSERT_EQ(lse_of(b, h, i), -kInfinity) << where;
          } else {
            ASSERT_NEAR(lse_of(b, h, i), std::log(sum), 2e-5) << where;
          }
          for (std::int64_t c = 0; c < kDimV; ++c) {
            const double want = sum == 0 ? 0 : values[static_cast<std::size_t>(c)] / sum;
            ASSERT_NEAR(o_of(b, h, i, c), want, 2e-5) << where << ", column " << c;
          }
        }
      }
    }
  }
};

bool always(std::int64_t, std::int64_t, std::int64_t, std::int64_t) { return true; }

std::vector<PlanOptions> backends() {
  return {{.backend = Backend::reference}, {.backend = Backend::cpu}};
}

TEST(KeyList, IsWhatARowAttendsTo) {
  for (const std::int64_t heads : {std::int64_t{1}, kHeadsK}) {
    Call call(heads);
    call.fill([&](std::int64_t) { return static_cast<std::int32_t>(call.random() % 160) - 5; });
    for (const PlanOptions& options : backends()) {
      call.run(options);
      call.expect_definition(always, std::string(name(options.backend)));
    }
  }
}

TEST(KeyList, CountsAKeyAsOftenAsItStands) {
  Call call;
  call.fill([](std::int64_t n) { return static_cast<std::int32_t>(n % 3 == 0 ? 7 : n % 11); });
  for (const PlanOptions& options : backends()) {
    call.run(options);
    call.expect_definition(always, std::string(name(options.backend)));
  }
}

TEST(KeyList, HidesWhatIsNoKeyOfTheSequence) {
  constexpr std::int32_t kNone[] = {-1,
                                    -2,
                                    100,
                                    149,
                                    std::numeric_limits<std::int32_t>::min(),
                                    std::numeric_limits<std::int32_t>::max()};
  Call call;
  // Of the second sequence, which has 100 keys, no list of the last query names one.
  call.fill([&](std::int64_t n) { return kNone[n % 6]; });
  for (std::int64_t head = 0; head < kHeadsK; ++head) call.entry(1, head, 0, 69) = 99;
  for (const PlanOptions& options : backends()) {
    call.run(options);
    call.expect_definition(always, std::string(name(options.backend)));
    EXPECT_EQ(call.lse_of(1, 0, 2), -kInfinity);
    EXPECT_EQ(call.o_of(1, 0, 2, 0), 0);
  }
}

TEST(KeyList, GivesMaskAndScoreTheOwnIndex) {
  const auto& s = expr::symbols();
  Call call;
  call.fill([&](std::int64_t n) { return static_cast<std::int32_t>(n * 37 % kKeys); });
  call.problem.mask = s.key % 3 != 1 || s.key == s.query;
  for (const PlanOptions& options : backends()) {
    call.run(options);
    call.expect_definition(
        [](auto, auto, std::int64_t i, std::int64_t key) { return key % 3 != 1 || key == i; },
        std::string(name(options.backend)));
  }
  // A score that hides by the index does what the mask does.
  call.problem.mask = {};
  call.problem.score = select(s.key % 5 == 2, -std::numeric_limits<float>::infinity(), s.score);
  for (const PlanOptions& options : backends()) {
    call.run(options);
    call.expect_definition([](auto, auto, auto, std::int64_t key) { return key % 5 != 2; },
                           std::string(name(options.backend)));
  }
}

// Rows of K and V that no list names hold NaN, and so do named ones that the mask hides.
TEST(KeyList, ReadsNothingElse) {
  const auto& s = expr::symbols();
  for (const bool masked : {false, true}) {
    Call call;
    call.fill([&](std::int64_t n) { return static_cast<std::int32_t>(n * 2 % kKeys); });
    if (masked) call.problem.mask = s.key % 4 == 0;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t key = 0; key < kKeys; ++key) {
        if (key % (masked ? 4 : 2) == 0) continue;
        std::fill_n(call.k.begin() + (b * kKeys + key) * kHeadsK * kDim, kHeadsK * kDim, kNaN);
        std::fill_n(call.v.begin() + (b * kKeys + key) * kHeadsK * kDimV, kHeadsK * kDimV, kNaN);
      }
    }
    for (const PlanOptions& options : backends()) {
      call.run(options);
      call.expect_definition(
          [&](auto, auto, auto, std::int64_t key) { return !masked || key % 4 == 0; },
          std::string(name(options.backend)) + (masked ? ", masked" : ""));
    }
  }
}

// Through pages too, where an entry of the table that no list needs may be any number.
TEST(KeyList, NamesKeysOfPages) {
  constexpr std::int64_t kPage = 10, kPages = kKeys / kPage;
  Call dense;
  dense.fill([&](std::int64_t n) { return static_cast<std::int32_t>(n * 7 % 90); });
  dense.run();
  std::vector<std::int32_t> table(kBatch * kPages);
  for (std::size_t n = 0; n < table.size(); ++n) table[n] = static_cast<std::int32_t>(n);
  Inputs in = dense.inputs();
  in.k = tensor(dense.k.data(), {kBatch * kPages, kPage, kHeadsK, kDim});
  in.v = tensor(dense.v.data(), {kBatch * kPages, kPage, kHeadsK, kDimV});
  in.page_table = tensor(table.data(), {kBatch, kPages});
  Problem problem = dense.problem;
  problem.layout_k = Layout::paged;
  table[9] = -1;  // keys 90 to 99 of the first sequence
  const std::vector<float> o = dense.o, lse = dense.lse;
  std::fill(dense.o.begin(), dense.o.end(), kNaN);
  forward(problem, in, dense.outputs());
  EXPECT_EQ(dense.o, o);
  EXPECT_EQ(dense.lse, lse);
  dense.entry(0, 1, 2, 3) = 95;
  try {
    forward(problem, in, dense.outputs());
    FAIL() << "a listed key of a page that is none";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("page_table[0, 9] is -1"), std::string::npos)
        << error.what();
  }
}

// A long list of one query is cut into parts, by its own length where the call is batch_invariant.
TEST(KeyList, OfOneQueryIsCutIntoParts) {
  constexpr std::int64_t kLong = 1100;
  Call call;
  std::vector<std::int32_t> lists(kBatch * kLong);
  for (std::int32_t& key : lists) key = static_cast<std::int32_t>(call.random() % 160) - 5;
  // A part that names no key.
  std::fill_n(lists.begin() + 500, 600, -1);
  Problem problem{.key_list = kLong};
  const auto result = [&](std::int64_t first, std::int64_t batch, const PlanOptions& options,
                          int threads) {
    std::vector<float> o(static_cast<std::size_t>(batch * kHeadsQ * kDimV), kNaN);
    const Inputs in{
        .q = tensor(call.q.data() + first * kHeadsQ * kDim, {batch, 1, kHeadsQ, kDim}),
        .k = tensor(call.k.data() + first * kKeys * kHeadsK * kDim, {batch, kKeys, kHeadsK, kDim}),
        .v =
            tensor(call.v.data() + first * kKeys * kHeadsK * kDimV, {batch, kKeys, kHeadsK, kDimV}),
        .seqused_k = tensor(call.used.data() + first, {batch}),
        .key_list = tensor(lists.data() + first * kLong, {batch, 1, 1, kLong})};
    const Outputs out{.o = tensor(o.data(), {batch, 1, kHeadsQ, kDimV})};
    const Plan plan = make_plan(complete(problem, in), Phase::forward, options);
    EXPECT_EQ(plan.num_splits, options.backend == Backend::reference ? 1 : 2);
    forward(problem, in, out, options, {.executor = make_thread_pool(threads), .log = nullptr});
    return o;
  };
  const std::vector<float> expected = result(0, kBatch, {.backend = Backend::reference}, 1);
  const std::vector<float> got = result(0, kBatch, {}, 1);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5) << i;
  EXPECT_EQ(got, result(0, kBatch, {.threads = 3}, 3));
  const PlanOptions invariant{.batch_invariant = true};
  std::vector<float> apart = result(0, 1, invariant, 2);
  for (const float x : result(1, 1, invariant, 1)) apart.push_back(x);
  EXPECT_EQ(result(0, kBatch, invariant, 3), apart);
}

TEST(KeyList, MayBeTakenFromTheTensor) {
  Call call;
  call.fill([](std::int64_t n) { return static_cast<std::int32_t>(n % 90); });
  call.problem.key_list = 0;
  EXPECT_EQ(complete(call.problem, call.inputs()).key_list, kList);
  call.run();
  call.expect_definition(always, "key_list 0");
}

// Refused with a message that holds these words.
void expect_refused(ErrorCode code, const std::vector<std::string>& words, const auto& call) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << words.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(KeyList, IsRefusedWhereItDoesNotFit) {
  Call call;
  const Problem complete_problem = complete(call.problem, call.inputs());
  const auto run = [&](Problem p, const auto& spoil, const PlanOptions& options = {}) {
    Inputs in = call.inputs();
    spoil(p, in);
    forward(p, in, call.outputs(), options);
  };
  const auto nothing = [](Problem&, Inputs&) {};
  expect_refused(ErrorCode::invalid_argument, {"key_list is i32[2, 2, 3, 70]", "64"},
                 [&] { run(complete_problem, [](Problem& p, Inputs&) { p.key_list = 64; }); });
  expect_refused(ErrorCode::invalid_argument, {"key_list is -1", "accepted are 0 to"},
                 [&] { run(complete_problem, [](Problem& p, Inputs&) { p.key_list = -1; }); });
  for (const std::int32_t rank : {-1, 3, 5, 1'000'000'000}) {
    expect_refused(ErrorCode::invalid_argument,
                   {"key_list has rank " + std::to_string(rank), "accepted is 4"},
                   [&] { run({}, [&](Problem&, Inputs& in) { in.key_list.rank = rank; }); });
  }
  expect_refused(ErrorCode::invalid_argument, {"key_list is i32[2, 2, 3, 0]", "one entry or more"},
                 [&] { run({}, [](Problem&, Inputs& in) { in.key_list.shape[3] = 0; }); });
  expect_refused(ErrorCode::invalid_argument, {"key_list is not given"},
                 [&] { run(complete_problem, [](Problem&, Inputs& in) { in.key_list = {}; }); });
  expect_refused(ErrorCode::invalid_argument, {"key_list", "lists of 1 or of 2 heads"}, [&] {
    run(complete_problem, [&](Problem&, Inputs& in) {
      in.key_list.shape[1] = 3;
      in.key_list.strides[1] = 0;
    });
  });
  expect_refused(
      ErrorCode::invalid_argument, {"key_list is", "stride 1 in the last dimension"},
      [&] { run(complete_problem, [](Problem&, Inputs& in) { in.key_list.strides[3] = 2; }); });
  expect_refused(ErrorCode::unsupported, {"dropout probability is 0.5", "key_list is 70"}, [&] {
    run(complete_problem, [](Problem& p, Inputs&) { p.dropout.probability = 0.5; });
  });
  expect_refused(ErrorCode::unsupported, {"algorithm standard", "key_list is 70"},
                 [&] { run(complete_problem, nothing, {.algorithm = Algorithm::standard}); });
  Problem in_f64 = complete_problem;
  in_f64.dtype = DType::f64;
  expect_refused(ErrorCode::unsupported, {"dtype is f64", "key_list is 70", "accepted by backward"},
                 [&] { make_plan(in_f64, Phase::backward); });
  // A plan without lists takes no lists.
  Problem without = complete_problem;
  without.key_list = 0;
  const Plan plan = make_plan(without, Phase::forward);
  expect_refused(ErrorCode::invalid_argument, {"key_list", "problem.key_list is 0"},
                 [&] { run_forward(plan, call.inputs(), call.outputs()); });
}

}  // namespace
}  // namespace attn
