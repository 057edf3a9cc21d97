#include "cpu/tasks.hpp"

#include <gtest/gtest.h>

namespace attn::cpu::testing {
namespace {

TEST(DivideLast, EveryRowStaysInOneTask) {
  Workspace workspace(nullptr, 0);
  const RowTasks tasks = {{0, 0, 256, 9}, {0, 256, 256, 8}, {1, 0, 100, 7}, {2, 0, 70, 6}};
  const auto whole = [](const RowTask& task) { return task.pair == 2; };
  const RowTasks divided = divide_last(tasks, 3, 64, whole, workspace);
  struct Rows {
    std::int64_t pair, row0, rows;
  };
  // The first task is not among the last three; pair 2 stays whole.
  const Rows expected[] = {{0, 0, 256},  {0, 256, 64}, {0, 320, 64}, {0, 384, 64},
                           {0, 448, 64}, {1, 0, 64},   {1, 64, 36},  {2, 0, 70}};
  ASSERT_EQ(divided.size(), std::size(expected));
  for (std::size_t i = 0; i < divided.size(); ++i) {
    EXPECT_EQ(divided[i].pair, expected[i].pair) << i;
    EXPECT_EQ(divided[i].row0, expected[i].row0) << i;
    EXPECT_EQ(divided[i].rows, expected[i].rows) << i;
  }
  EXPECT_EQ(divide_last(tasks, 0, 64, whole, workspace).size(), tasks.size());
  EXPECT_EQ(divide_last(RowTasks(), 2, 64, whole, workspace).size(), 0u);
}

}  // namespace
}  // namespace attn::cpu::testing
