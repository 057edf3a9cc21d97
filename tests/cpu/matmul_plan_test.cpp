// Plans of matrix products that were edited: a call honours a field or refuses it by name.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "attn/attn.hpp"

namespace attn {
namespace {

constexpr std::int64_t kM = 70, kN = 90, kK = 110;

struct Product {
  std::vector<float> a = std::vector<float>(kM * kK), b = std::vector<float>(kK * kN);
  std::vector<float> c = std::vector<float>(kM * kN, NAN);
  MatmulProblem problem{.m = kM, .n = kN, .k = kK};

  Product() {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 5) - 2;
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 3) - 1;
  }
  // The message of the refusal; empty where there is none.
  std::string run(const MatmulPlan& plan) {
    c.assign(c.size(), NAN);
    try {
      matmul(plan, {.a = tensor(a.data(), {kM, kK}), .b = tensor(b.data(), {kK, kN})},
             tensor(c.data(), {kM, kN}));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      for (const float x : c) EXPECT_TRUE(std::isnan(x)) << "written before the refusal";
      return error.what();
    }
    return {};
  }
};

struct MatmulEdit {
  const char* expected;
  std::function<void(MatmulPlan&)> edit;
};

void expect_refused(const MatmulEdit& edit, const MatmulOptions& options) {
  Product product;
  MatmulPlan plan = make_plan(product.problem, options);
  EXPECT_EQ(product.run(plan), "") << "as it is, it runs";
  edit.edit(plan);
  const std::string message = product.run(plan);
  EXPECT_NE(message.find(edit.expected), std::string::npos) << edit.expected << ": " << message;
  EXPECT_NE(message.find("accepted"), std::string::npos) << message;
}

const std::vector<MatmulEdit>& edits_of_any_backend() {
  static const std::vector<MatmulEdit> edits = {
      {"backend of the plan is cuda", [](MatmulPlan& p) { p.backend = Backend::cuda; }},
      {"backend of the plan is automatic", [](MatmulPlan& p) { p.backend = Backend::automatic; }},
      {"backend of the plan is unknown",
       [](MatmulPlan& p) { p.backend = static_cast<Backend>(99); }},
      {"device of the plan is cuda:0",
       [](MatmulPlan& p) {
         p.device = {DeviceType::cuda, 0};
       }},
      {"block_m of the plan is 1000", [](MatmulPlan& p) { p.block_m = 1000; }},
      {"block_n of the plan is 1000000", [](MatmulPlan& p) { p.block_n = 1000000; }},
      {"block_n of the plan is -1", [](MatmulPlan& p) { p.block_n = -1; }},
      {"block_k of the plan is 1000", [](MatmulPlan& p) { p.block_k = 1000; }},
      {"splits of the plan is 2", [](MatmulPlan& p) { p.splits = 2; }},
      {"threads of the plan is 0", [](MatmulPlan& p) { p.threads = 0; }},
      {"tasks of the plan is 77", [](MatmulPlan& p) { p.tasks = 77; }},
      {"workspace_bytes of the plan is -1", [](MatmulPlan& p) { p.workspace_bytes = -1; }},
      {"launch.kernel of the plan is x", [](MatmulPlan& p) { p.launch.kernel = "x"; }},
      {"launch.arch of the plan is x", [](MatmulPlan& p) { p.launch.arch = "x"; }},
      {"launch.grid[0] of the plan is 3", [](MatmulPlan& p) { p.launch.grid[0] = 3; }},
      {"launch.threads of the plan is 3", [](MatmulPlan& p) { p.launch.threads = 3; }},
      {"launch.cluster of the plan is 3", [](MatmulPlan& p) { p.launch.cluster = 3; }},
      {"launch.shared_bytes of the plan is 3", [](MatmulPlan& p) { p.launch.shared_bytes = 3; }},
      {"launch.stages of the plan is 3", [](MatmulPlan& p) { p.launch.stages = 3; }},
      {"bytes of the plan is 3", [](MatmulPlan& p) { p.bytes = 3; }},
      {"isa of the plan is unknown",
       [](MatmulPlan& p) { p.isa = static_cast<InstructionSet>(99); }},
      {"compute of the plan is bf16", [](MatmulPlan& p) { p.compute = DType::bf16; }},
  };
  return edits;
}

TEST(MatmulPlan, EditedToNonsenseIsRefusedByField) {
  for (const char* rung : {"naive", "blocked", "few_rows", "packed"}) {
    SCOPED_TRACE(rung);
    const MatmulOptions options{.rung = rung};
    for (const MatmulEdit& edit : edits_of_any_backend()) expect_refused(edit, options);
    expect_refused(
        {"isa of the plan is automatic", [](MatmulPlan& p) { p.isa = InstructionSet::automatic; }},
        options);
    expect_refused({"compute of the plan is f64", [](MatmulPlan& p) { p.compute = DType::f64; }},
                   options);
    expect_refused({"rung of the plan is amx", [](MatmulPlan& p) { p.rung = "amx"; }}, options);
    expect_refused({"rung is fast", [](MatmulPlan& p) { p.rung = "fast"; }}, options);
  }
}

TEST(MatmulPlan, OfTheReferenceHasNothingToEdit) {
  const MatmulOptions options{.backend = Backend::reference};
  for (const MatmulEdit& edit : edits_of_any_backend()) expect_refused(edit, options);
  expect_refused({"isa of the plan is avx2", [](MatmulPlan& p) { p.isa = InstructionSet::avx2; }},
                 options);
  expect_refused({"rung", [](MatmulPlan& p) { p.rung = "packed"; }}, options);
}

// An instruction set that the machine lacks ended the program by a signal.
TEST(MatmulPlan, InstructionSetsAreHonouredOrRefused) {
  for (const InstructionSetInfo& info : instruction_sets()) {
    for (const char* rung : {"naive", "blocked", "few_rows", "packed"}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        std::vector<bfloat16> a(kM * kK, bfloat16(1)), b(kK * kN, bfloat16(2));
        std::vector<float> x(kM * kK, 1), y(kK * kN, 2), c(kM * kN, NAN);
        const bool f32 = dtype == DType::f32;
        const MatmulInputs inputs{
            .a = f32 ? tensor(x.data(), {kM, kK}) : tensor(a.data(), {kM, kK}),
            .b = f32 ? tensor(y.data(), {kK, kN}) : tensor(b.data(), {kK, kN})};
        const Tensor to = tensor(c.data(), {kM, kN});
        MatmulPlan plan =
            make_plan(describe(inputs, to), {.rung = rung}, {.isa = InstructionSet::portable});
        plan.isa = info.isa;
        try {
          matmul(plan, inputs, to);
          EXPECT_TRUE(info.available) << name(info.isa);
          for (const float value : c) ASSERT_EQ(value, 2 * kK) << name(info.isa);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
        }
      }
    }
  }
}

TEST(MatmulPlan, EditsThatACallHonours) {
  Product product;
  const MatmulPlan plan = make_plan(product.problem);
  EXPECT_EQ(product.run(plan), "");
  const std::vector<float> expected = product.c;
  for (const char* rung : {"naive", "blocked", "few_rows", "packed"}) {
    for (const int threads : {1, 3}) {
      MatmulPlan edited = make_plan(product.problem, {.rung = rung, .threads = threads});
      edited.threads += 1;
      edited.reasons = {"mine"};
      EXPECT_EQ(product.run(edited), "") << rung;
      EXPECT_EQ(product.c, expected) << rung;  // whole numbers, so every order gives the same
    }
  }
}

TEST(MatmulPlan, MovedFromOrMadeByNobodyIsRefused) {
  Product product;
  MatmulPlan plan = make_plan(product.problem);
  const MatmulPlan moved = std::move(plan);
  // NOLINTNEXTLINE(bugprone-use-after-move): what is tested
  EXPECT_NE(product.run(plan).find("state of the plan is empty"), std::string::npos);
  EXPECT_NE(product.run(MatmulPlan()).find("state of the plan is empty"), std::string::npos);
  EXPECT_EQ(product.run(moved), "");
}

}  // namespace
}  // namespace attn
