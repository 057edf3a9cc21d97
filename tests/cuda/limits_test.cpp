// What no launch takes is refused by name, before anything runs. On the driver that pretends: plans
// need a device, not its memory.
#include "cuda/limits.hpp"

#include <string>
#include <vector>

#include "attn/plan.hpp"
#include "cuda/backward/buffers.hpp"
#include "cuda/backward/source.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/plan/choose_buffers.hpp"
#include "cuda/support.hpp"
#include "cuda/temporary_folder.hpp"

namespace attn::cuda {
namespace {

const Environment kCompiler("ATTN_NVRTC", ATTN_FAKE_DRIVER);

std::string refused(const std::string& descriptor, Phase phase = Phase::forward) {
  return refusal(ErrorCode::unsupported, [&] {
    make_plan(parse_problem(descriptor), phase, {.device = {DeviceType::cuda, 0}});
  });
}

TEST(Sizes, LongestSequences) {
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    expect_contains(refused("b1_sq2147475457_sk8_h1_d8_bf16", phase),
                    "seqlen_q is 2147475457; accepted on the cuda backend are up to 2147475456 "
                    "(problem b1_sq2147475457_");
    expect_contains(refused("b1_sq8_sk2147475457_h1_d8_bf16", phase), "seqlen_k is 2147475457; ");
    expect_contains(refused("b1_sq1_sk8_h1_d8_list2147475457_bf16", phase),
                    "key_list is 2147475457; ");
    EXPECT_NO_THROW(make_plan(parse_problem("b1_sq2147475456_sk2147475456_h1_d8_bf16"), phase,
                              {.device = {DeviceType::cuda, 0}}));
  }
}

// Four thousand million tiles are as many blocks of threads; the number does not fit in an int.
TEST(Sizes, Grids) {
  for (const char* dtype : {"bf16", "f32"}) {
    const std::string many = std::string("b4000000_n1_h1000_d8_") + dtype;
    expect_contains(
        refused(many),
        "the forward pass has 4000000000 blocks of threads or tiles in a launch; accepted");
    expect_contains(refused(many, Phase::backward), "the backward pass has 4000000000 blocks");
  }
  // Words for a mask that reads a buffer: 2^24 tiles, each with 2^19 windows.
  expect_contains(refused("b1_sq2147475456_sk2147475456_h1_d8_bf16_mask(seen[query/64]!=0)_"
                          "buffer(seen:u8:33554304)"),
                  "blocks of threads or tiles in a launch");
}

// Beyond 2^63 bytes, which would have wrapped around to few.
TEST(Sizes, Workspaces) {
  expect_contains(refused("b2147483647_n2147475456_packed_h1_d8_bf16_mask(seen[query/64]!=0)_"
                          "buffer(seen:u8:33554304)"),
                  "the workspace of the forward pass is 2^63 - 1 or more bytes");
  expect_contains(refused("b2147483647_n2147475456_packed_h1_d8_bf16", Phase::backward),
                  "the workspace of the backward pass is 2^63 - 1 or more bytes");
}

// A score with as many buffers as there may be, all of which its derivatives read.
std::string many_buffers(int count) {
  std::string score = "score", buffers;
  for (int i = 0; i < count; ++i) {
    score += "+score*t" + std::to_string(i) + "[head]";
    buffers += "_buffer(t" + std::to_string(i) + ":f32:4)";
  }
  return "b1_n8_h4_d64_score(" + score + ")" + buffers + "_f32";
}

TEST(Parameters, FitWhereCompilerAndDriverAreNew) {
  EXPECT_EQ(parameter_space(), 32764);
  EXPECT_NO_THROW(make_plan(parse_problem(many_buffers(32)), Phase::backward,
                            {.device = {DeviceType::cuda, 0}}));
  const Problem problem = parse_problem("b1_n8_h1_d8_f32");
  EXPECT_NO_THROW(check_parameters(problem, "a kernel", 32764));
  expect_contains(
      refusal(ErrorCode::unsupported, [&] { check_parameters(problem, "a kernel", 32765); }),
      "the parameters of a kernel are 32765 bytes");
}

TEST(Parameters, AreRefusedByNameWhereTheDriverIsOld) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto report = [] {
    setenv("FAKE_DRIVER_VERSION", "12000", 1);
    // dQ, dK and dV fit, the gradients of all buffers do not.
    const Problem problem = parse_problem(many_buffers(24));
    make_plan(problem, Phase::backward, {.device = {DeviceType::cuda, 0}});
    std::vector<std::string> names;
    for (int i = 0; i < 24; ++i) names.push_back("t" + std::to_string(i));
    const BackwardConfig config = buffers_config(problem, {}, names, {});
    const std::string message =
        refusal(ErrorCode::unsupported, [&] { backward_source(problem, config, names); });
    names.resize(16);
    backward_source(parse_problem(many_buffers(16)), config, names);
    std::fprintf(stderr, "%s\n", message.c_str());
    std::exit(0);
  };
  EXPECT_EXIT(report(), ::testing::ExitedWithCode(0),
              "the parameters of backward_simt_buffers are 4[0-9]* bytes.*accepted are up to 4096 "
              "here, and 32764 where NVRTC and driver are of CUDA 12.1 or newer .problem "
              "b1_n8_h4_d64_score");
}

}  // namespace
}  // namespace attn::cuda
