// Plans that were edited, executors without workers, and problems too large for any memory are
// refused by name.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attn/attn.hpp"

namespace attn {
namespace {

// Two heads of 100 queries and keys.
struct Call {
  Problem problem{.batch = 1,
                  .seqlen_q = 100,
                  .seqlen_k = 100,
                  .heads_q = 2,
                  .heads_k = 2,
                  .head_dim = 16,
                  .head_dim_v = 16};
  std::vector<float> values = std::vector<float>(100 * 2 * 16, 0.5f);
  std::vector<float> o = std::vector<float>(values.size(), NAN);
  std::vector<float> lse = std::vector<float>(200, NAN);
  std::vector<float> dq = o;
  Tensor view(std::vector<float>& x) const { return tensor(x.data(), {1, 100, 2, 16}); }

  void run(const Plan& plan, const Context& context = {}) {
    const Inputs inputs{.q = view(values), .k = view(values), .v = view(values)};
    const Outputs outputs{.o = view(o), .lse = tensor(lse.data(), {1, 2, 100})};
    if (plan.phase == Phase::forward) return forward(plan, inputs, outputs, context);
    backward(plan, inputs, outputs, view(values), {.dq = view(dq)}, context);
  }
};

// The message; empty where nothing is thrown.
std::string refusal(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return {};
}

struct Edit {
  const char* expected;
  std::function<void(Plan&)> edit;
};

TEST(Plan, EditedToNonsenseIsRefusedByField) {
  const Edit edits[] = {
      {"rows_per_task of the plan is 0", [](Plan& p) { p.rows_per_task = 0; }},
      {"rows_per_task of the plan is -1", [](Plan& p) { p.rows_per_task = -1; }},
      {"rows_per_task of the plan is 1000000", [](Plan& p) { p.rows_per_task = 1000000; }},
      {"num_splits of the plan is 0", [](Plan& p) { p.num_splits = 0; }},
      {"num_splits of the plan is 3", [](Plan& p) { p.num_splits = 3; }},
      {"threads of the plan is 0", [](Plan& p) { p.threads = 0; }},
      {"threads of the plan is -7", [](Plan& p) { p.threads = -7; }},
      {"block_q of the plan is 0", [](Plan& p) { p.block_q = 0; }},
      {"block_k of the plan is 128", [](Plan& p) { p.block_k = 128; }},
      {"algorithm of the plan is automatic", [](Plan& p) { p.algorithm = Algorithm::automatic; }},
      {"algorithm of the plan is unknown",
       [](Plan& p) { p.algorithm = static_cast<Algorithm>(99); }},
      {"backend of the plan is automatic", [](Plan& p) { p.backend = Backend::automatic; }},
      {"backend of the plan is unknown", [](Plan& p) { p.backend = static_cast<Backend>(99); }},
      {"isa of the plan is automatic", [](Plan& p) { p.isa = InstructionSet::automatic; }},
      {"isa of the plan is unknown", [](Plan& p) { p.isa = static_cast<InstructionSet>(99); }},
      {"compute of the plan is bf16", [](Plan& p) { p.compute = DType::bf16; }},
      {"compute of the plan is f64", [](Plan& p) { p.compute = DType::f64; }},
      // What a run does not read.
      {"tasks of the plan is 77", [](Plan& p) { p.tasks = 77; }},
      {"workspace_bytes of the plan is 1", [](Plan& p) { p.workspace_bytes = 1; }},
      {"kernel of the plan is forward_sm80", [](Plan& p) { p.kernel = "forward_sm80"; }},
      {"launch.kernel of the plan is x", [](Plan& p) { p.launch.kernel = "x"; }},
      {"launch.arch of the plan is sm_90a", [](Plan& p) { p.launch.arch = "sm_90a"; }},
      {"launch.grid[0] of the plan is 3", [](Plan& p) { p.launch.grid[0] = 3; }},
      {"launch.grid[1] of the plan is 3", [](Plan& p) { p.launch.grid[1] = 3; }},
      {"launch.grid[2] of the plan is 3", [](Plan& p) { p.launch.grid[2] = 3; }},
      {"launch.threads of the plan is 128", [](Plan& p) { p.launch.threads = 128; }},
      {"launch.cluster of the plan is 2", [](Plan& p) { p.launch.cluster = 2; }},
      {"launch.shared_bytes of the plan is 9", [](Plan& p) { p.launch.shared_bytes = 9; }},
      {"launch.stages of the plan is 2", [](Plan& p) { p.launch.stages = 2; }},
      {"bytes of the plan is 1", [](Plan& p) { p.bytes = 1; }},
  };
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    for (const Edit& edit : edits) {
      Call call;
      Plan plan = make_plan(call.problem, phase);
      call.run(plan);  // as it is, it runs
      edit.edit(plan);
      call.o.assign(call.o.size(), NAN);
      const std::string message = refusal(ErrorCode::invalid_argument, [&] { call.run(plan); });
      EXPECT_NE(message.find(edit.expected), std::string::npos) << edit.expected << ": " << message;
      EXPECT_NE(message.find("accepted"), std::string::npos) << message;
      for (const float x : call.o) ASSERT_TRUE(std::isnan(x)) << "written before the refusal";
    }
  }
}

// Where rows or scores would be lost in bf16: Q of a type of its own, and scales far from 1.
TEST(Plan, EditedToBf16OperandsThatLoseIsRefused) {
  std::vector<bfloat16> x(64 * 32), o(8 * 32, bfloat16(-1.0f));
  std::vector<std::uint8_t> bytes(8 * 32);
  const Tensor keys = tensor(x.data(), {1, 64, 1, 32});
  Problem problem{.batch = 1,
                  .seqlen_q = 1,
                  .seqlen_k = 64,
                  .heads_q = 8,
                  .heads_k = 1,
                  .head_dim = 32,
                  .head_dim_v = 32,
                  .dtype = DType::bf16};
  Inputs inputs{.q = tensor(x.data(), {1, 1, 8, 32}), .k = keys, .v = keys};
  const auto expect_refused = [&] {
    Plan plan = make_plan(problem, Phase::forward);
    EXPECT_EQ(plan.compute, DType::f32);
    plan.compute = DType::bf16;
    const std::string message = refusal(ErrorCode::invalid_argument, [&] {
      forward(plan, inputs, {.o = tensor(o.data(), {1, 1, 8, 32})});
    });
    EXPECT_NE(message.find("compute of the plan is bf16"), std::string::npos) << message;
  };
  for (const double scale : {0.0, -1.0, 0x1p-33, 0x1p33}) {
    problem.softmax_scale = scale;
    expect_refused();
  }
  problem.softmax_scale = 1;
  problem.type_q = CacheType::e4m3;
  inputs.q = tensor(bytes.data(), {1, 1, 8, 32});
  expect_refused();
}

// The reference runs in one way only.
TEST(Plan, OfTheReferenceHasNothingToEdit) {
  const Edit edits[] = {
      {"algorithm of the plan is flash_attention",
       [](Plan& p) { p.algorithm = Algorithm::flash_attention; }},
      {"isa of the plan is avx2", [](Plan& p) { p.isa = InstructionSet::avx2; }},
      {"compute of the plan is f32", [](Plan& p) { p.compute = DType::f32; }},
      {"block_q of the plan is 1", [](Plan& p) { p.block_q = 1; }},
      {"block_k of the plan is 1", [](Plan& p) { p.block_k = 1; }},
      {"rows_per_task of the plan is 1", [](Plan& p) { p.rows_per_task = 1; }},
      {"num_splits of the plan is 2", [](Plan& p) { p.num_splits = 2; }},
      {"threads of the plan is 2", [](Plan& p) { p.threads = 2; }},
      {"tasks of the plan is 77", [](Plan& p) { p.tasks = 77; }},
      {"workspace_bytes of the plan is 1", [](Plan& p) { p.workspace_bytes = 1; }},
  };
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    for (const Edit& edit : edits) {
      Call call;
      Plan plan = make_plan(call.problem, phase, {.backend = Backend::reference});
      edit.edit(plan);
      const std::string message = refusal(ErrorCode::invalid_argument, [&] { call.run(plan); });
      EXPECT_NE(message.find(edit.expected), std::string::npos) << edit.expected << ": " << message;
      for (const float x : call.o) ASSERT_TRUE(std::isnan(x)) << "written before the refusal";
    }
  }
}

// Fields that change nothing, or how a plan runs and not what it gives.
TEST(Plan, EditsThatARunHonours) {
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    Call call;
    Plan plan = make_plan(call.problem, phase);
    plan.reasons = {"mine"};
    plan.deterministic = true;
    plan.threads += 1;
    EXPECT_NO_THROW(call.run(plan));
    for (const Algorithm algorithm : algorithms(phase)) {
      plan.algorithm = algorithm;
      plan.isa = InstructionSet::portable;
      plan.block_q = make_plan(call.problem, phase, {}, {.isa = plan.isa}).block_q;
      plan.rows_per_task = plan.block_q;
      EXPECT_NO_THROW(call.run(plan)) << name(algorithm);
    }
  }
}

// A sequence has parts by its own length; the most, of the longest that there may be, are the
// plan's.
TEST(Plan, OfBatchInvarianceIsThatOfOneSequence) {
  Problem problem{.seqlen_q = 1, .seqlen_k = 4096, .heads_q = 8, .heads_k = 2, .head_dim = 64};
  problem.head_dim_v = problem.head_dim;
  const auto plan_of = [&](std::int64_t batch, bool batch_invariant) {
    problem.batch = batch;
    return make_plan(problem, Phase::forward, {.batch_invariant = batch_invariant});
  };
  const Plan one = plan_of(1, true), many = plan_of(64, true);
  EXPECT_TRUE(many.batch_invariant);
  EXPECT_EQ(many.num_splits, one.num_splits);
  EXPECT_GT(many.num_splits, plan_of(64, false).num_splits);
  const auto says_it = [](const Plan& plan) {
    return to_string(plan).find("batch_invariant: ") != std::string::npos;
  };
  EXPECT_TRUE(says_it(many));
  EXPECT_FALSE(says_it(plan_of(64, false)));
}

TEST(Plan, OfBatchInvarianceThatWasEdited) {
  Call call;
  Plan plan = make_plan(call.problem, Phase::forward);
  plan.batch_invariant = true;  // of FlashAttention-2 nothing else changes
  EXPECT_NO_THROW(call.run(plan));
  plan.num_splits = 2;
  call.o.assign(call.o.size(), NAN);
  const std::string message = refusal(ErrorCode::invalid_argument, [&] { call.run(plan); });
  EXPECT_NE(
      message.find("num_splits of the plan is 2; accepted is 1 where batch_invariant is true"),
      std::string::npos)
      << message;
  for (const float x : call.o) ASSERT_TRUE(std::isnan(x)) << "written before the refusal";

  for (const Backend backend : {Backend::cpu, Backend::reference}) {
    Plan backward = make_plan(call.problem, Phase::backward, {.backend = backend});
    backward.batch_invariant = true;
    EXPECT_NE(refusal(ErrorCode::invalid_argument, [&] { call.run(backward); })
                  .find("batch_invariant of the plan is true"),
              std::string::npos);
    EXPECT_NE(refusal(ErrorCode::unsupported,
                      [&] {
                        make_plan(call.problem, Phase::backward,
                                  {.backend = backend, .batch_invariant = true});
                      })
                  .find("batch_invariant is true; accepted by backward is false"),
              std::string::npos);
  }
}

// It has lost what make_plan kept in it.
TEST(Plan, MovedFromIsRefused) {
  for (const Backend backend : {Backend::cpu, Backend::reference}) {
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      Call call;
      call.problem.mask = causal();
      Plan plan = make_plan(call.problem, phase, {.backend = backend});
      const Plan moved = std::move(plan);
      const std::string message =
          // NOLINTNEXTLINE(bugprone-use-after-move): what is tested
          refusal(ErrorCode::invalid_argument, [&] { call.run(plan); });
      EXPECT_NE(message.find("state of the plan is empty"), std::string::npos) << message;
      for (const float x : call.o) ASSERT_TRUE(std::isnan(x)) << "written before the refusal";
      call.run(moved);
    }
  }
}

// Its state is of another type then, and was read as one of this phase's.
TEST(Plan, OfAnotherPhaseBackendOrDeviceThanItWasMadeForIsRefused) {
  const Edit edits[] = {
      {"phase of the plan is",
       [](Plan& p) { p.phase = p.phase == Phase::forward ? Phase::backward : Phase::forward; }},
      {"backend of the plan is reference; accepted is cpu",
       [](Plan& p) { p.backend = Backend::reference; }},
      {"backend of the plan is cuda; accepted is cpu", [](Plan& p) { p.backend = Backend::cuda; }},
      {"device of the plan is cuda:0",
       [](Plan& p) {
         p.device = {DeviceType::cuda, 0};
       }},
  };
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    for (const Edit& edit : edits) {
      Call call;
      Plan plan = make_plan(call.problem, phase);
      edit.edit(plan);
      const std::string message = refusal(ErrorCode::invalid_argument, [&] { call.run(plan); });
      EXPECT_NE(message.find(edit.expected), std::string::npos) << edit.expected << ": " << message;
      for (const float x : call.o) ASSERT_TRUE(std::isnan(x)) << "written before the refusal";
    }
  }
}

TEST(Plan, EveryFieldThatMakePlanSetsIsTaken) {
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    for (const Algorithm algorithm : algorithms(phase)) {
      for (const std::int64_t queries : {1, 100}) {
        Problem problem = Call().problem;
        problem.seqlen_q = queries;
        const Plan plan = make_plan(problem, phase, {.algorithm = algorithm});
        std::vector<float> x(100 * 2 * 16, 0.5f), o(x), lse(200), dq(x);
        const auto view = [](std::vector<float>& v, std::int64_t n) {
          return tensor(v.data(), {1, n, 2, 16});
        };
        const Inputs inputs{.q = view(x, queries), .k = view(x, 100), .v = view(x, 100)};
        const Outputs outputs{.o = view(o, queries), .lse = tensor(lse.data(), {1, 2, queries})};
        if (phase == Phase::forward) {
          EXPECT_NO_THROW(forward(plan, inputs, outputs)) << to_string(plan);
        } else {
          EXPECT_NO_THROW(
              backward(plan, inputs, outputs, view(x, queries), {.dq = view(dq, queries)}))
              << to_string(plan);
        }
      }
    }
  }
}

double share_of_visible(const Problem& p) {
  double seen = 0;
  for (std::int32_t query = 0; query < p.seqlen_q; ++query) {
    for (std::int32_t key = 0; key < p.seqlen_k; ++key) {
      seen += expr::evaluate<float>(p.mask, {.query = query,
                                             .key = key,
                                             .seqlen_q = static_cast<std::int32_t>(p.seqlen_q),
                                             .seqlen_k = static_cast<std::int32_t>(p.seqlen_k)});
    }
  }
  return seen / static_cast<double>(p.seqlen_q * p.seqlen_k);
}

TEST(PlanFlops, AreThoseOfVisibleElements) {
  for (const char* text :
       {"b2_n130_hq4_hk2_d8_causal", "b1_sq70_sk200_h2_d8_causal", "b1_n150_h2_d8_window20x3",
        "b1_n200_h2_d8_mask(key%2==0)", "b1_n200_h2_d8_mask(query%3==0)",
        "b1_sq90_sk200_h2_d8_mask(position<key+5)", "b1_n120_h2_d8_mask((query+key)%2==0)"}) {
    const Problem p = parse_problem(text);
    const auto elements = static_cast<double>(p.batch * p.heads_q * p.seqlen_q * p.seqlen_k);
    EXPECT_DOUBLE_EQ(make_plan(p, Phase::forward).flops(), 4 * 8 * elements * share_of_visible(p))
        << text;
  }
}

// Each element is a tile of its own: looking at all 2^34 would take more than half an hour.
TEST(PlanFlops, OfMasksThatTilesSayNothingAboutAreDrawn) {
  const Problem p = parse_problem("b1_n131072_h2_d8_mask((query+key)%2==0)");
  const Plan plan = make_plan(p, Phase::forward);
  const double half = 4 * 8 * 2.0 * 131072 * 131072 / 2;
  EXPECT_NEAR(plan.flops(), half, 0.02 * half);
  EXPECT_EQ(plan.flops(), plan.flops());
  const Problem heads = parse_problem("b1_n512_h64_d8_mask((query+key+head)%2==0)");
  EXPECT_NEAR(make_plan(heads, Phase::forward).flops(), 4 * 8 * 32.0 * 512 * 512,
              0.02 * 4 * 8 * 32 * 512 * 512);
}

// What a mask shows is counted when it is asked for, not while planning: a plan reads nothing of a
// buffer (reading this one ends the program), and a mask over 2^40 scores, whose tiles alone would
// take hours, is planned as any other.
TEST(PlanWork, DoesNotLookAtTheMask) {
  constexpr std::size_t kBytes = std::size_t{2048} * 2048;
  void* memory = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const Tensor seen = tensor(memory, DType::u8, {2048, 2048});
  std::vector<Problem> problems = {parse_problem("b8_n2048_h16_d64")};
  problems.back().mask =
      expr::Buffer("seen", seen)({expr::symbols().query, expr::symbols().key}) != 0;
  for (const char* mask :
       {"causal", "window128x0", "prefix100", "causal_documents", "butterfly1024",
        "butterfly1024_window100x50", "mask(key%2==0)", "mask((query+key)%2==0)",
        "mask(min(query%97,key%89)*max(query,key)%7!=3)",
        "mask(select(head%2==0,abs(position-key)<64,(key&position)==0))",
        "mask(exp(0.1*to_float(key-query))>w[key])_buffer(w:f16:1048576)"}) {
    problems.push_back(parse_problem("b1_n1048576_h1_d64_" + std::string(mask)));
    problems.push_back(parse_problem("b1_n1048576_h1_d64_packed_" + std::string(mask)));
  }
  for (const Problem& problem : problems) {
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      for (const Algorithm algorithm : algorithms(phase)) {
        EXPECT_EQ(
            make_plan(problem, phase, {.backend = Backend::cpu, .algorithm = algorithm}).algorithm,
            algorithm)
            << to_string(problem);
      }
    }
  }
  ::munmap(memory, kBytes);
}

class NoWorkers final : public Executor {
 public:
  explicit NoWorkers(int workers) : workers_(workers) {}
  int concurrency() const noexcept override { return workers_; }
  void parallel_for(std::int64_t, const std::function<void(std::int64_t, int)>&) override {
    ADD_FAILURE() << "asked to run";
  }

 private:
  int workers_;
};

TEST(Plan, ExecutorsWithoutWorkersAreRefused) {
  for (const int workers : {0, -1, std::numeric_limits<int>::min()}) {
    Context context;
    context.executor = std::make_shared<NoWorkers>(workers);
    const std::string expected =
        "executor of the context has concurrency " + std::to_string(workers);
    Call call;
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      const Plan plan = make_plan(call.problem, phase);
      for (const std::function<void()>& use :
           {std::function<void()>([&] { make_plan(call.problem, phase, {}, context); }),
            std::function<void()>([&] { call.run(plan, context); })}) {
        const std::string message = refusal(ErrorCode::invalid_argument, use);
        EXPECT_NE(message.find(expected), std::string::npos) << message;
      }
    }
    EXPECT_THROW(measure_peak_gflops(DType::f32, context, 0.001), Error);
    EXPECT_THROW(measure_read_gbps(context, 0.001), Error);
  }
}

// Four query heads of 2^30 queries and keys: 2^62 scores, whose bytes are 0 in 64 bits.
TEST(Plan, SizesPast64BitsAreRefused) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Problem problem{.batch = 1,
                          .seqlen_q = 1 << 30,
                          .seqlen_k = 1 << 30,
                          .heads_q = 4,
                          .heads_k = 1,
                          .head_dim = 1,
                          .head_dim_v = 1,
                          .dtype = dtype};
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      const std::string message = refusal(ErrorCode::out_of_memory, [&] {
        make_plan(problem, phase, {.backend = Backend::cpu, .algorithm = Algorithm::standard});
      });
      EXPECT_NE(message.find("workspace of standard is 2^63 - 1 or more bytes"), std::string::npos)
          << message;
      EXPECT_NE(message.find("n1073741824"), std::string::npos) << message;
    }
  }
}

// The same, a run: inputs repeat one element. O is never touched, so its address need not exist.
TEST(Plan, RunsPast64BitsAreRefusedBeforeAnythingIsWritten) {
  constexpr std::int64_t kLength = std::int64_t{1} << 30;
  bfloat16 one(1.0f);
  Tensor q = tensor(&one, {1, 1, 1, 1});
  q.shape = {1, kLength, 4, 1};
  q.strides = {0, 0, 0, 1};
  Tensor k = q;
  k.shape[2] = 1;
  const Tensor o = tensor(reinterpret_cast<bfloat16*>(std::uintptr_t{1} << 44), {1, kLength, 4, 1});
  const std::string message = refusal(ErrorCode::out_of_memory, [&] {
    forward({}, Inputs{.q = q, .k = k, .v = k}, Outputs{.o = o},
            PlanOptions{.backend = Backend::cpu, .algorithm = Algorithm::standard});
  });
  EXPECT_NE(message.find("2^63 - 1 or more bytes"), std::string::npos) << message;
}

// 2^60 bytes can be counted, but no machine has them.
TEST(Plan, MemoryThatCannotBeHadIsToldWithItsSizeAndPurpose) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator of the sanitizer ends the program";
#endif
  constexpr std::int64_t kLength = std::int64_t{1} << 29;
  bfloat16 one(1.0f);
  Tensor q = tensor(&one, {1, 1, 1, 1});
  q.shape = {1, kLength, 1, 1};
  q.strides = {0, 0, 0, 1};
  const Tensor o = tensor(reinterpret_cast<bfloat16*>(std::uintptr_t{1} << 44), {1, kLength, 1, 1});
  const std::string message = refusal(ErrorCode::out_of_memory, [&] {
    forward({}, Inputs{.q = q, .k = q, .v = q}, Outputs{.o = o},
            PlanOptions{.backend = Backend::cpu, .algorithm = Algorithm::standard});
  });
  EXPECT_NE(message.find("scores"), std::string::npos) << message;
  EXPECT_NE(message.find("1152921504606846976 bytes"), std::string::npos) << message;
}

}  // namespace
}  // namespace attn
