// Errors, structures of other versions, and texts.
#include "c/boundary.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c/c_call.hpp"

namespace attn::c {
namespace {

using attn::testing::none;

TEST(CBoundary, EveryErrorHasAStatus) {
  const std::pair<ErrorCode, attn_status> all[] = {
      {ErrorCode::invalid_argument, ATTN_INVALID_ARGUMENT},
      {ErrorCode::unsupported, ATTN_UNSUPPORTED},
      {ErrorCode::unavailable, ATTN_UNAVAILABLE},
      {ErrorCode::out_of_memory, ATTN_OUT_OF_MEMORY},
      {ErrorCode::device, ATTN_DEVICE},
      {ErrorCode::io, ATTN_IO},
      {ErrorCode::internal, ATTN_INTERNAL}};
  std::vector<std::string> names{attn_status_name(ATTN_OK)};
  for (const auto& [code, status] : all) {
    const std::string message = "message " + std::to_string(status);
    EXPECT_EQ(guarded([&, code = code] { throw Error(code, message); }), status);
    EXPECT_EQ(attn_last_error(), message);
    EXPECT_EQ(std::find(names.begin(), names.end(), attn_status_name(status)), names.end());
    names.emplace_back(attn_status_name(status));
  }
  EXPECT_STREQ(attn_status_name(-1), "unknown");
  EXPECT_STREQ(attn_status_name(8), "unknown");
}

TEST(CBoundary, NothingPassesThrough) {
  EXPECT_EQ(guarded([] { throw std::bad_alloc(); }), ATTN_OUT_OF_MEMORY);
  EXPECT_EQ(guarded([] { throw std::logic_error("logic"); }), ATTN_INTERNAL);
  EXPECT_STREQ(attn_last_error(), "logic");
  EXPECT_EQ(guarded([] { throw 7; }), ATTN_INTERNAL);
  EXPECT_EQ(guarded([] {}), ATTN_OK);
  EXPECT_STRNE(attn_last_error(), "logic");
  EXPECT_STRNE(attn_last_error(), "");  // success leaves it
}

TEST(CBoundary, EachThreadHasItsOwnMessage) {
  guarded([] { throw std::logic_error("first"); });
  std::thread([] {
    EXPECT_STREQ(attn_last_error(), "");
    guarded([] { throw std::logic_error("second"); });
    EXPECT_STREQ(attn_last_error(), "second");
  }).join();
  EXPECT_STREQ(attn_last_error(), "first");
}

struct Longer {
  attn_problem problem;
  std::uint64_t later;
};

TEST(CBoundary, StructuresOfNewerPrograms) {
  Longer longer{};
  longer.problem.struct_size = sizeof(Longer);
  longer.problem.batch = 3;
  EXPECT_EQ(taken("problem", &longer.problem).batch, 3);
  longer.later = 1;
  try {
    taken("problem", &longer.problem);
    FAIL() << "a member that is not known was passed by";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("byte 168"), std::string::npos) << error.what();
  }
}

TEST(CBoundary, SizesThatNoVersionHas) {
  attn_problem problem = none<attn_problem>();
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{8}, sizeof(attn_plan_info) - 1,
                                   std::uint64_t{4097}, ~std::uint64_t{0}}) {
    problem.struct_size = size;
    EXPECT_THROW(taken("problem", &problem), Error) << size;
    attn_plan_info info = none<attn_plan_info>();
    info.struct_size = size;
    EXPECT_THROW(give("info", attn_plan_info{}, &info), Error) << size;
  }
}

// What lies behind a caller's shorter structure stays.
TEST(CBoundary, ResultsEndWhereTheCallersStructureEnds) {
  struct {
    attn_machine machine;
    std::uint64_t behind[4];
  } caller;
  std::memset(&caller, 0xee, sizeof(caller));
  caller.machine.struct_size = sizeof(attn_machine) + 16;  // a newer program's
  ASSERT_EQ(attn_describe_machine(&caller.machine), ATTN_OK) << attn_last_error();
  EXPECT_EQ(caller.machine.struct_size, sizeof(attn_machine) + 16);
  EXPECT_GT(caller.machine.cpus, 0);
  for (const std::uint64_t word : caller.behind) EXPECT_EQ(word, 0xeeeeeeeeeeeeeeeeU);
}

TEST(CBoundary, TextsAreCut) {
  char text[8];
  std::memset(text, 'x', sizeof(text));
  std::size_t length = 0;
  give_text("attention", text, 5, &length);
  EXPECT_STREQ(text, "atte");
  EXPECT_EQ(text[5], 'x');
  EXPECT_EQ(length, 9U);
  give_text("at", text, 8, nullptr);
  EXPECT_STREQ(text, "at");
  give_text("attention", nullptr, 0, &length);
  EXPECT_THROW(give_text("attention", nullptr, 1, &length), Error);
}

TEST(CBoundary, Flags) {
  EXPECT_FALSE(flag("sink", 0));
  EXPECT_TRUE(flag("sink", 1));
  EXPECT_THROW(flag("sink", 2), Error);
  EXPECT_THROW(flag("sink", -1), Error);
}

}  // namespace
}  // namespace attn::c
