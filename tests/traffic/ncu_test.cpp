// The table of Nsight Compute: as version 2025 writes it with --csv, numbers of an H200.
#include "traffic/ncu.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "attn/error.hpp"

namespace attn::traffic {
namespace {

constexpr std::string_view kHeader =
    R"("ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value")"
    "\n";

std::string row(int id, std::string_view metric, std::string_view unit, std::string_view value) {
  return fmt::format(
      R"x("{}","4711","attn","127.0.0.1","attn_forward","1","13","(256, 1, 1)","(1,024, 16, 1)",)x"
      R"x("0","9.0","Command line profiler metrics","{}","{}","{}")x"
      "\n",
      id, metric, unit, value);
}

// Two launches: softmax beside a product, in the order in which ncu prints them.
std::string table() {
  return "==PROF== Connected to process 4711 (/usr/bin/attn)\n"
         "==PROF== Profiling \"attn_forward\": 0%....50%....100% - 3 passes\n"
         "==PROF== Disconnected from process 4711\n" +
         std::string(kHeader) + row(0, "dram__bytes_read.sum", "byte", "9,403,740,928") +
         row(0, "dram__bytes_write.sum", "byte", "8,871,470,080") +
         row(0, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "", "1,613,444,648") +
         row(0, "l1tex__m_l1tex2xbar_write_bytes.sum", "byte", "8,904,148,448") +
         row(0, "l1tex__m_xbar2l1tex_read_bytes.sum", "byte", "26,015,010,048") +
         row(1, "dram__bytes_read.sum", "byte", "1,000") +
         row(1, "dram__bytes_write.sum", "byte", "200") +
         row(1, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "", "2") +
         row(1, "l1tex__m_l1tex2xbar_write_bytes.sum", "byte", "30") +
         row(1, "l1tex__m_xbar2l1tex_read_bytes.sum", "byte", "4");
}

TEST(Ncu, SumsTheLaunches) {
  const GpuCounts counts = parse_ncu(table());
  EXPECT_EQ(counts.launches, 2);
  EXPECT_EQ(counts.dram_read, 9403740928.0 + 1000);
  EXPECT_EQ(counts.dram_written, 8871470080.0 + 200);
  EXPECT_EQ(counts.l2_written, 8904148448.0 + 30);
  EXPECT_EQ(counts.l2_read, 26015010048.0 + 4);
  EXPECT_EQ(counts.shared, 128 * (1613444648.0 + 2));
  EXPECT_EQ(counts.l2(), 26015010048.0 + 4 + 8904148448.0 + 30);
  EXPECT_EQ(counts.dram(), 9403740928.0 + 1000 + 8871470080.0 + 200);
}

TEST(Ncu, FindsColumnsByTheirNames) {
  const GpuCounts counts = parse_ncu(
      "\"Metric Value\",\"Kernel \"\"a, b\"\"\",\"Metric Unit\",\"Metric Name\",\"ID\"\n"
      "\"1.5\",\"x\"\"y\",\"Kbyte\",\"dram__bytes_read.sum\",\"7\"\n");
  EXPECT_EQ(counts.launches, 1);
  EXPECT_EQ(counts.dram_read, 1500);
}

// A GPU without a counter leaves a column empty, and other metrics are no bytes of it.
TEST(Ncu, WhatWasNotCountedIsEmpty) {
  const GpuCounts counts =
      parse_ncu(std::string(kHeader) + row(0, "dram__bytes_read.sum", "byte", "n/a") +
                row(0, "dram__bytes_write.avg", "byte", "5") +
                row(0, "sm__cycles_elapsed.sum", "cycle", "7") +
                row(0, "l1tex__m_xbar2l1tex_read_bytes.sum", "byte", "3"));
  EXPECT_EQ(counts.launches, 1);
  EXPECT_FALSE(counts.dram_read || counts.dram_written || counts.shared || counts.l2_written);
  EXPECT_EQ(counts.l2_read, 3);
  EXPECT_FALSE(counts.l2() || counts.dram());
  for (const auto& [first, second] : {std::pair{"n/a", "1,000"}, std::pair{"1,000", "n/a"}}) {
    const GpuCounts of_one_launch =
        parse_ncu(std::string(kHeader) + row(0, "dram__bytes_read.sum", "byte", first) +
                  row(1, "dram__bytes_read.sum", "byte", second));
    EXPECT_FALSE(of_one_launch.dram_read) << first;
  }
  EXPECT_EQ(parse_ncu("==ERROR== ERR_NVGPUCTRPERM\n").launches, 0);
  EXPECT_EQ(parse_ncu("").launches, 0);
}

void expect_refused(const std::string& text, std::string_view part) {
  try {
    parse_ncu(text);
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
  }
}

TEST(Ncu, RefusesOtherTables) {
  expect_refused("\"ID\",\"Metric Name\"\n\"0\",\"dram__bytes_read.sum\"\n",
                 "column \"Metric Value\"");
  expect_refused(std::string(kHeader) + row(0, "dram__bytes_read.sum", "byte", "many"), "\"many\"");
  expect_refused(std::string(kHeader) + row(0, "dram__bytes_read.sum", "byte", ""), "\"\"");
  expect_refused(std::string(kHeader) + row(0, "dram__bytes_read.sum", "furlong", "1"),
                 "\"furlong\"");
}

TEST(Ncu, AsksForTheCountersThatThereAre) {
  EXPECT_EQ(ncu_metrics("Device NVIDIA H200 (GH100)\n"
                        "dram__bytes_read           Counter   byte  # of bytes read from DRAM\n"
                        "dram__bytes_write_x        Counter   byte  another\n"
                        "l1tex__m_xbar2l1tex_read_bytes\n"),
            "l1tex__m_xbar2l1tex_read_bytes.sum,dram__bytes_read.sum");
  const std::string all = ncu_metrics("ncu: no such option\n");
  EXPECT_EQ(std::count(all.begin(), all.end(), ','), 4);
}

}  // namespace
}  // namespace attn::traffic
