// A rank that differs, refuses, leaves or does not come is an Error on every other one, which names
// it. A time-out is only ever waited for here where the other rank never comes, so that no test
// depends on how fast the machine is.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "attn/dist.hpp"
#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "dist/greeting.hpp"

namespace attn::dist {
namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kRows = 96;

Problem problem_of() {
  Problem p{.batch = 1, .seqlen_q = kRows, .seqlen_k = kRows, .heads_q = 2, .heads_k = 1};
  p.head_dim = p.head_dim_v = 8;
  p.dtype = DType::f32;
  p.mask = causal();
  return p;
}

// What each rank's work threw, on a thread each; a rank leaves when its work ends.
std::vector<std::optional<Error>> errors_of(const std::function<void(const Group& group)>& work) {
  std::vector<std::optional<Error>> errors(kRanks);
  std::vector<Group> groups = in_process(kRanks);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&errors, &work, r, group = std::move(groups[r])]() mutable {
      try {
        work(group);
      } catch (const Error& error) {
        errors[r] = error;
      }
      group = Group(nullptr);
    });
  }
  groups.clear();
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_all(const std::vector<std::optional<Error>>& errors, const std::string& text,
                ErrorCode code, int except = -1) {
  for (int r = 0; r < kRanks; ++r) {
    if (r == except) continue;
    const auto& error = errors[static_cast<std::size_t>(r)];
    ASSERT_TRUE(error.has_value()) << "rank " << r;
    EXPECT_EQ(error->code(), code) << error->what();
    EXPECT_NE(std::string(error->what()).find(text), std::string::npos) << error->what();
  }
}

// Tensors of a rank's rows.
struct Local {
  explicit Local(const Plan& plan) {
    std::int64_t rows = 0;
    for (const Rows& range : plan.rows(plan.rank())) rows += range.end - range.begin;
    for (auto* x : {&q, &o}) x->assign(static_cast<std::size_t>(rows * 16), 1);
    for (auto* x : {&k, &v}) x->assign(static_cast<std::size_t>(rows * 8), 1);
    inputs = {.q = tensor(q.data(), {1, rows, 2, 8}),
              .k = tensor(k.data(), {1, rows, 1, 8}),
              .v = tensor(v.data(), {1, rows, 1, 8})};
    outputs = {.o = tensor(o.data(), {1, rows, 2, 8})};
  }
  std::vector<float> q, k, v, o;
  Inputs inputs;
  Outputs outputs;
};

TEST(Failure, AnotherMaskIsNamed) {
  const auto errors = errors_of([](const Group& group) {
    Problem p = problem_of();
    if (group.rank() == 2) p.mask = window(5, 0);
    make_plan(p, group);
  });
  expect_all(errors, "mask is", ErrorCode::invalid_argument);
  expect_all(errors, "on rank 2", ErrorCode::invalid_argument);
}

TEST(Failure, AnotherLengthIsNamed) {
  const auto errors = errors_of([](const Group& group) {
    Problem p = problem_of();
    if (group.rank() == 1) p.seqlen_q = kRows + 1;
    make_plan(p, group);
  });
  expect_all(errors, "sizes is 'b1 sq97 sk96 hq2 hk1 d8 dv8' on rank 1",
             ErrorCode::invalid_argument);
}

TEST(Failure, AnotherDtypeIsNamed) {
  const auto errors = errors_of([](const Group& group) {
    Problem p = problem_of();
    if (group.rank() == 1) p.dtype = DType::bf16;
    make_plan(p, group);
  });
  expect_all(errors, "dtype is 'bf16' on rank 1", ErrorCode::invalid_argument);
}

TEST(Failure, AnotherTypeOfOIsNamed) {
  const auto errors = errors_of([](const Group& group) {
    Problem p = problem_of();
    p.dtype = DType::bf16;
    if (group.rank() == 1) p.type_o = DType::f32;
    make_plan(p, group);
  });
  expect_all(errors, "o f32' on rank 1", ErrorCode::invalid_argument);
}

TEST(Failure, ContentsOfTheMasksBuffersAreCompared) {
  const auto errors = errors_of([](const Group& group) {
    std::vector<std::int32_t> ids(kRows, group.rank() == 1 ? 1 : 0);
    Problem p = problem_of();
    p.mask = documents(tensor(ids.data(), {kRows}));
    make_plan(p, group);
  });
  expect_all(errors, "buffers is", ErrorCode::invalid_argument);
}

// Of K in a type of its own: which scales there are must be the same; the backward pass is refused.
TEST(Failure, OtherScalesAreNamed) {
  const auto errors = errors_of([](const Group& group) {
    Problem p = problem_of();
    p.type_k = CacheType::e4m3;
    const Plan plan = make_plan(p, group);
    Local local(plan);
    const std::vector<unsigned char> k(local.k.size(), 0x38);
    const std::vector<float> scales(local.k.size(), 2);
    const std::int64_t rows = local.inputs.k.shape[1];
    local.inputs.k = tensor(k.data(), {1, rows, 1, 8});
    local.inputs.scale_k = group.rank() == 1 ? tensor(scales.data(), {std::int64_t{1}})
                                             : tensor(scales.data(), {1, rows, 1});
    std::optional<Error> refused;
    try {
      backward(plan, local.inputs, local.outputs, {}, {});
    } catch (const Error& error) {
      refused = error;
    }
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->code(), ErrorCode::unsupported) << refused->what();
    EXPECT_NE(std::string(refused->what()).find("type_k is e4m3"), std::string::npos);
    forward(plan, local.inputs, local.outputs);
  });
  expect_all(errors, "scales is 'scale_k of rank 1, scale_v of rank 0' on rank 1",
             ErrorCode::invalid_argument);
}

// The plan's refusal reaches all ranks, and the group stays of use.
TEST(Failure, ARefusedArgumentIsToldToAllAndTheGroupGoesOn) {
  std::atomic<int> done = 0;
  const auto errors = errors_of([&](const Group& group) {
    const Plan plan = make_plan(problem_of(), group);
    Local local(plan);
    Inputs wrong = local.inputs;
    if (group.rank() == 1) wrong.q.shape[3] = 7;
    std::optional<Error> refused;
    try {
      forward(plan, wrong, local.outputs);
    } catch (const Error& error) {
      refused = error;
    }
    forward(plan, local.inputs, local.outputs);
    ++done;
    if (refused) throw Error(*refused);
  });
  EXPECT_EQ(done, kRanks);
  expect_all(errors, "rank 1: q is", ErrorCode::invalid_argument);
}

TEST(Failure, AnotherCallIsNamed) {
  const auto errors = errors_of([](const Group& group) {
    const Plan plan = make_plan(problem_of(), group);
    Local local(plan);
    if (group.rank() == 2) {
      make_plan(problem_of(), group);
    } else {
      forward(plan, local.inputs, local.outputs);
    }
  });
  expect_all(errors, "call is 'make_plan' on rank 2 and 'forward' on rank 0",
             ErrorCode::invalid_argument);
}

TEST(Failure, LargestScoresOfSomeRanksAreRefused) {
  const auto errors = errors_of([](const Group& group) {
    const Plan plan = make_plan(problem_of(), group);
    Local local(plan);
    std::vector<float> largest(2);
    if (group.rank() == 1) local.outputs.max_logit = tensor(largest.data(), {2});
    forward(plan, local.inputs, local.outputs);
  });
  expect_all(errors, "max_logit is 'asked' on rank 1 and '' on rank 0",
             ErrorCode::invalid_argument);
}

TEST(Failure, ARankThatLeavesIsNamed) {
  const auto errors = errors_of([](const Group& group) {
    const Plan plan = make_plan(problem_of(), group);
    Local local(plan);
    forward(plan, local.inputs, local.outputs);
    if (group.rank() == 1) return;
    forward(plan, local.inputs, local.outputs);
  });
  EXPECT_FALSE(errors[1].has_value());
  expect_all(errors, "rank 1 has left the group", ErrorCode::unavailable, 1);
}

// An executor that fails in the middle of a call.
class Failing : public Executor {
 public:
  int concurrency() const noexcept override { return 1; }
  void parallel_for(std::int64_t /*count*/,
                    const std::function<void(std::int64_t, int)>& /*body*/) override {
    throw Error(ErrorCode::out_of_memory, "no memory is left");
  }
};

TEST(Failure, WhatGoesWrongInTheMiddleReachesTheOthers) {
  const auto errors = errors_of([](const Group& group) {
    const Plan plan = make_plan(problem_of(), group);
    Local local(plan);
    std::vector<float> lse(local.q.size()), dk(local.k.size());
    local.outputs.lse = tensor(lse.data(), {1, 2, local.inputs.q.shape[1]});
    forward(plan, local.inputs, local.outputs);
    Context context;
    if (group.rank() == 0) context.local.executor = std::make_shared<Failing>();
    std::vector<float> d_o(local.o);
    backward(plan, local.inputs, local.outputs,
             tensor(d_o.data(), {1, local.inputs.q.shape[1], 2, 8}),
             {.dk = tensor(dk.data(), {1, local.inputs.q.shape[1], 1, 8})}, context);
  });
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_EQ(errors[0]->code(), ErrorCode::out_of_memory);
  expect_all(errors, "rank 0: no memory is left", ErrorCode::unavailable, 0);
}

// Rank 1 waits until the others have given it up: rank 0, which waits for rank 1 first, by its
// time-out, and rank 2 since rank 0 has.
TEST(Failure, ARankThatHangsIsGivenUp) {
  std::atomic<int> gave_up = 0;
  const auto errors = errors_of([&](const Group& group) {
    const Plan plan = make_plan(problem_of(), group);
    Local local(plan);
    if (group.rank() == 1) {
      gave_up.wait(0);
      gave_up.wait(1);
      return;
    }
    const int most = group.rank() == 0 ? 20 : 600'000;
    try {
      forward(plan, local.inputs, local.outputs, {.timeout = std::chrono::milliseconds(most)});
    } catch (...) {
      ++gave_up;
      gave_up.notify_all();
      throw;
    }
  });
  expect_all(errors, "rank 1 did not come within 20 ms", ErrorCode::unavailable, 1);
}

// Rank 1 is of a library whose greetings begin with another number.
TEST(Failure, AnotherVersionIsNamed) {
  const auto errors = errors_of([](const Group& group) {
    if (group.rank() != 1) {
      make_plan(problem_of(), group);
      return;
    }
    const Greeting greeting("make_plan");
    std::vector<char> bytes(sizeof(Greeting)), others(2 * sizeof(Greeting));
    std::memcpy(bytes.data(), &greeting, sizeof(Greeting));
    const std::int32_t version = 2;
    std::memcpy(bytes.data(), &version, sizeof(version));
    const Send sends[] = {{.to = 0, .data = bytes.data(), .bytes = bytes.size()},
                          {.to = 2, .data = bytes.data(), .bytes = bytes.size()}};
    const Receive receives[] = {
        {.from = 0, .data = others.data(), .bytes = bytes.size()},
        {.from = 2, .data = others.data() + bytes.size(), .bytes = bytes.size()}};
    group.engine().exchange(sends, receives, std::chrono::milliseconds(600'000));
  });
  EXPECT_FALSE(errors[1].has_value());
  expect_all(errors, "rank 1 speaks version 2", ErrorCode::invalid_argument, 1);
}

TEST(Failure, AGroupThatFailedStaysSo) {
  const auto errors = errors_of([](const Group& group) {
    group.engine().fail("rank 7: something broke");
    make_plan(problem_of(), group);
  });
  expect_all(errors, "rank 7: something broke", ErrorCode::unavailable);
}

TEST(Failure, MessagesOfAnotherSizeAreRefused) {
  const std::vector<Group> groups = in_process(2);
  std::vector<std::optional<Error>> errors(2);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      char bytes[8] = {};
      const Send send{.to = static_cast<int>(1 - r), .data = bytes, .bytes = r == 0 ? 8u : 4u};
      char got[8];
      const Receive receive{.from = static_cast<int>(1 - r), .data = got, .bytes = 8};
      try {
        groups[r].engine().exchange({&send, 1}, {&receive, 1}, std::chrono::milliseconds(600'000));
      } catch (const Error& error) {
        errors[r] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_NE(std::string(errors[0]->what()).find("rank 1 sent 4 bytes"), std::string::npos);
}

// A length of int64 whose low half would do.
TEST(Failure, AWideLengthOfACacheIsRefusedEverywhere) {
  const auto errors = errors_of([](const Group& group) {
    std::vector<float> q(8), k(32), o(8, -1.0f);
    const std::vector<std::int32_t> table{0};
    const std::int64_t length = group.rank() == 1 ? (std::int64_t{1} << 32) + 3 : 3;
    Problem problem;
    problem.layout_k = Layout::paged;
    const Inputs inputs{.q = tensor(q.data(), {1, 1, 1, 8}),
                        .k = tensor(k.data(), {1, 4, 1, 8}),
                        .v = tensor(k.data(), {1, 4, 1, 8}),
                        .seqused_k = tensor(&length, {1}),
                        .page_table = tensor(table.data(), {1, 1})};
    forward_cached(problem, group, inputs, {.o = tensor(o.data(), {1, 1, 1, 8})});
  });
  expect_all(errors, "seqused_k[0] is 4294967299; accepted are 0 to 2^31 - 1",
             ErrorCode::invalid_argument);
}

// Pages of no key, by which lengths would be divided.
TEST(Failure, EmptyPagesOfACacheAreRefusedEverywhere) {
  for (const std::int64_t page_size : {0, -4}) {
    const auto errors = errors_of([&](const Group& group) {
      std::vector<float> q(8), k(32), o(8, -1.0f);
      const std::vector<std::int32_t> table{0};
      const std::int32_t length = 3;
      Problem problem;
      problem.layout_k = Layout::paged;
      problem.page_size = page_size;
      const Tensor empty = tensor(k.data(), {1, 0, 1, 8});
      const Inputs inputs{.q = tensor(q.data(), {1, 1, 1, 8}),
                          .k = empty,
                          .v = empty,
                          .seqused_k = tensor(&length, {1}),
                          .page_table = tensor(table.data(), {1, 1})};
      forward_cached(problem, group, inputs, {.o = tensor(o.data(), {1, 1, 1, 8})});
    });
    expect_all(errors, "page_size is " + std::to_string(page_size), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace attn::dist
