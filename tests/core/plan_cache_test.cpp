// Plans that calls by problem share.
#include "plan_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "attn/error.hpp"
#include "attn/mask.hpp"
#include "attn/run.hpp"
#include "attn/scalar.hpp"

namespace attn {
namespace {

using expr::Expr;

// Counts what is planned.
struct Counting {
  PlanCache cache;
  int made = 0;

  std::shared_ptr<const Plan> find(const Problem& problem, Phase phase = Phase::forward,
                                   const PlanOptions& options = {},
                                   InstructionSet isa = InstructionSet::automatic,
                                   int workers = 2) {
    return cache.find({problem, phase, options, isa, workers}, [&](const Problem& p) {
      ++made;
      Plan plan;
      plan.problem = p;
      return plan;
    });
  }
};

Problem small() { return parse_problem("b1_n8_h2_d16_f32"); }

TEST(PlanCache, FindsLikeProblemsOnly) {
  Counting c;
  const Problem p = small();
  const auto first = c.find(p);
  EXPECT_EQ(c.find(p), first);
  EXPECT_EQ(c.made, 1);
  const std::vector<void (*)(Problem&)> changes = {
      [](Problem& x) { x.batch = 2; },
      [](Problem& x) { x.seqlen_q = 9; },
      [](Problem& x) { x.seqlen_k = 9; },
      [](Problem& x) { x.heads_q = 4; },
      [](Problem& x) { x.heads_k = 1; },
      [](Problem& x) { x.head_dim = 8; },
      [](Problem& x) { x.head_dim_v = 8; },
      [](Problem& x) { x.dtype = DType::bf16; },
      [](Problem& x) { x.layout_q = Layout::packed; },
      [](Problem& x) { x.layout_k = Layout::packed; },
      [](Problem& x) { x.layout_k = Layout::paged; },
      [](Problem& x) { x.page_size = 16; },
      [](Problem& x) { x.softmax_scale = 0.5; },
      [](Problem& x) { x.softmax_scale = 0.0; },
      [](Problem& x) { x.mask = causal(); },
      [](Problem& x) { x.mask = causal(Alignment::top_left); },
      [](Problem& x) { x.score = softcap(30); },
      [](Problem& x) { x.score = softcap(31); },
      [](Problem& x) { x.sink = true; },
      [](Problem& x) { x.dropout.probability = 0.5; },
      [](Problem& x) { x.dropout.rng_state = true; }};
  int expected = 1;
  for (const auto change : changes) {
    Problem other = p;
    change(other);
    c.find(other);
    EXPECT_EQ(c.made, ++expected);
    Problem again = p;  // expressions of its own
    change(again);
    c.find(again);
    EXPECT_EQ(c.made, expected);
  }
  c.find(p, Phase::backward);
  c.find(p, Phase::forward, {.backend = Backend::cpu});
  c.find(p, Phase::forward, {.algorithm = Algorithm::standard});
  c.find(p, Phase::forward, {.device = {DeviceType::cuda, 0}});
  c.find(p, Phase::forward, {.device = {DeviceType::cuda, 1}});
  c.find(p, Phase::forward, {.kernel = "forward_simt"});
  c.find(p, Phase::forward, {.threads = 1});
  c.find(p, Phase::forward, {.deterministic = true});
  c.find(p, Phase::forward, {}, InstructionSet::portable);
  c.find(p, Phase::forward, {}, InstructionSet::automatic, 3);
  EXPECT_EQ(c.made, expected + 10);
  EXPECT_EQ(c.find(p), first);
  // Not what a plan depends on.
  Problem seeds = p;
  seeds.dropout.seed = 5;
  seeds.dropout.offset = 6;
  EXPECT_EQ(c.find(seeds), first);
}

TEST(PlanCache, FindsLikeProductsOnly) {
  PlanCache cache;
  int made = 0;
  const auto find = [&](const MatmulProblem& problem, const MatmulOptions& options = {},
                        InstructionSet isa = InstructionSet::automatic, int workers = 2) {
    return cache.find(MatmulRequest{problem, options, isa, workers}, [&] {
      ++made;
      return MatmulPlan{.problem = problem};
    });
  };
  const MatmulProblem p{.m = 8, .n = 16, .k = 24};
  const auto first = find(p);
  const std::vector<void (*)(MatmulProblem&)> changes = {
      [](MatmulProblem& x) { x.batch = 2; },
      [](MatmulProblem& x) { x.m = 9; },
      [](MatmulProblem& x) { x.n = 9; },
      [](MatmulProblem& x) { x.k = 9; },
      [](MatmulProblem& x) { x.dtype = DType::bf16; },
      [](MatmulProblem& x) { x.output = DType::bf16; },
      [](MatmulProblem& x) { x.dtype_b = DType::bf16; },
      [](MatmulProblem& x) { x.format_b = BlockFormat::q8_0; },
      [](MatmulProblem& x) { x.dtype = DType::bf16, x.dtype_b = DType::f32; },  // refused
      [](MatmulProblem& x) { x.order_a = MatrixOrder::column_major; },
      [](MatmulProblem& x) { x.order_b = MatrixOrder::column_major; },
      [](MatmulProblem& x) { x.order_c = MatrixOrder::column_major; },
      [](MatmulProblem& x) { x.bias = true; },
      [](MatmulProblem& x) { x.accumulate = true; },
      [](MatmulProblem& x) { x.activation = Activation::relu; },
      [](MatmulProblem& x) { x.float8 = Float8::e4m3; },
      [](MatmulProblem& x) { x.scaled = true; },
      [](MatmulProblem& x) { x.masked = MaskedMatrix::b; },
      [](MatmulProblem& x) { x.block = 32; }};
  int expected = 1;
  for (const auto change : changes) {
    MatmulProblem other = p;
    change(other);
    const auto plan = find(other);
    EXPECT_EQ(made, ++expected);
    EXPECT_EQ(find(other), plan);
  }
  find(p, {.backend = Backend::reference});
  find(p, {.device = {DeviceType::cuda, 0}});
  find(p, {.device = {DeviceType::cuda, 1}});
  find(p, {.rung = "naive"});
  find(p, {.threads = 1});
  find(p, {}, InstructionSet::portable);
  find(p, {}, InstructionSet::automatic, 3);
  EXPECT_EQ(made, expected + 7);
  EXPECT_EQ(find(p), first);
}

TEST(PlanCache, BuffersCountByShapeAndAreNotKept) {
  Counting c;
  const auto with = [&](std::int64_t size, DType dtype, std::int64_t stride) {
    auto memory = std::make_shared<std::vector<float>>(64);
    Tensor t = tensor(memory->data(), dtype, {size});
    t.strides[0] = stride;
    Problem p = small();
    p.score = expr::symbols().score * expr::Buffer("w", t, memory)[expr::symbols().key];
    const std::weak_ptr<void> owner = memory;
    memory.reset();
    EXPECT_FALSE(owner.expired());
    const auto plan = c.find(p);
    p = {};
    EXPECT_TRUE(owner.expired());
    EXPECT_EQ(expr::buffers(plan->problem.score)[0]->tensor().data, nullptr);
  };
  with(8, DType::f32, 1);
  with(8, DType::f32, 1);
  EXPECT_EQ(c.made, 1);
  with(9, DType::f32, 1);
  with(8, DType::f16, 1);
  with(8, DType::f32, 2);
  EXPECT_EQ(c.made, 4);
  const auto scalar = [&](const Expr& value) {
    Problem p = small();
    p.mask = expr::symbols().key < expr::scalar("w", value);
    c.find(p);
  };
  scalar(3);
  scalar(4);
  EXPECT_EQ(c.made, 5);
  scalar(4.0);
  EXPECT_EQ(c.made, 6);
}

TEST(PlanCache, ForgetsTheOneUsedLongestAgo) {
  Counting c;
  Problem p = small();
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t n = 1; n <= static_cast<std::int64_t>(PlanCache::kPlans); ++n) {
      p.seqlen_q = n;
      c.find(p);
    }
  }
  EXPECT_EQ(c.made, 64);
  p.seqlen_q = 1;
  c.find(p);  // used again
  p.seqlen_q = 100;
  c.find(p);  // in the place of 2
  EXPECT_EQ(c.made, 65);
  p.seqlen_q = 1;
  c.find(p);
  EXPECT_EQ(c.made, 65);
  p.seqlen_q = 2;
  c.find(p);
  EXPECT_EQ(c.made, 66);
}

TEST(PlanCache, WhatMakeThrowsIsNotKept) {
  PlanCache cache;
  const Problem p = small();
  const PlanOptions options;
  const PlanRequest request{p, Phase::forward, options, InstructionSet::automatic, 1};
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(
        cache.find(request,
                   [](const Problem&) -> Plan { throw Error(ErrorCode::unsupported, "no"); }),
        Error);
  }
}

// Calls by problem: what changes from call to call is that of the call.
struct Call {
  std::vector<float> q = std::vector<float>(8 * 2 * 16), k = q, v = q, o = q;
  Call() {
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = std::sin(static_cast<float>(i));
      k[i] = std::cos(static_cast<float>(3 * i));
      v[i] = std::sin(static_cast<float>(7 * i));
    }
  }
  std::vector<float> run(const Problem& p, const expr::Bindings& buffers, Backend backend) {
    std::fill(o.begin(), o.end(), std::nanf(""));
    const auto view = [](std::vector<float>& x) { return tensor(x.data(), {1, 8, 2, 16}); };
    forward(p, {.q = view(q), .k = view(k), .v = view(v), .buffers = buffers}, {.o = view(o)},
            {.backend = backend});
    return o;
  }
  void expect_right(const Problem& p, const expr::Bindings& buffers = {}) {
    const std::vector<float> got = run(p, buffers, Backend::cpu);
    const std::vector<float> expected = run(p, buffers, Backend::reference);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << i;
  }
};

TEST(PlanCache, CallsReadTheirOwnTensors) {
  const auto& s = expr::symbols();
  Call call;
  std::vector<std::vector<float>> results;
  for (int step = 0; step < 6; ++step) {
    // New memory each step, freed at its end.
    std::vector<std::int32_t> ids(8);
    for (int i = 0; i < 8; ++i) ids[static_cast<std::size_t>(i)] = (i * (step + 1)) % 3;
    std::vector<float> slopes = {0.1F * static_cast<float>(step), 0.3F};
    Problem p;
    p.mask = documents(tensor(ids.data(), {8})) && s.key <= s.query + expr::scalar("offset", step);
    p.score =
        alibi(tensor(slopes.data(), {2})) * expr::scalar("factor", 0.5F * static_cast<float>(step));
    call.expect_right(p);
    results.push_back(call.run(p, {}, Backend::cpu));
    std::int32_t other = -step;
    call.expect_right(p, {{"offset", tensor(&other, {})}});
    // The same memory with other numbers.
    std::reverse(ids.begin(), ids.end());
    call.expect_right(p);
    p.dropout = {0.5, static_cast<std::uint64_t>(step), 3};
    call.expect_right(p);
    p.dropout.seed += 100;
    call.expect_right(p);
  }
  for (std::size_t i = 1; i < results.size(); ++i) EXPECT_NE(results[i], results[i - 1]);
}

TEST(PlanCache, OneNameOfTwoTensorsIsRefusedEachTime) {
  const auto& s = expr::symbols();
  Call call;
  Problem p;
  p.mask = s.key < expr::scalar("w", 5);
  p.score = s.score * expr::scalar("w", 6);
  for (int i = 0; i < 2; ++i) {
    try {
      call.run(p, {}, Backend::cpu);
      FAIL() << "not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("accepted is one tensor a name"), std::string::npos);
    }
  }
  p.score = s.score * expr::scalar("w", 5);
  call.expect_right(p);
}

TEST(PlanCache, ManyThreads) {
  const auto& s = expr::symbols();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      Call call;
      for (int i = 0; i < 40; ++i) {
        Problem p;
        p.mask = s.key <= s.query + expr::scalar("w", i % 7) && s.key != 20 + (i + t) % 90;
        call.expect_right(p);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace attn
