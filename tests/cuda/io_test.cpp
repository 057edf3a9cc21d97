// `attn io --device cuda`: the plan of the GPU that is here, and what counters say, or why they say
// nothing. Where ATTN_FAKE_NCU names a folder, it has a program in the place of ncu
// (emulator/fake_ncu), whose numbers are known.
#include <nlohmann/json.hpp>

#include "command_test_util.hpp"

namespace attn::io {
namespace {

using Json = nlohmann::json;

class CudaIo : public Command {
 protected:
  void SetUp() override {
    Command::SetUp();
    const Result result = attn("io b1_n64_h1_d32_f32 --device cuda");
    if (result.code != 3) return;
    EXPECT_TRUE(result.err_has("no GPU can be used")) << result.text();
    GTEST_SKIP() << "skipped: no GPU";
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    ::unsetenv("FAKE_NCU");
    Command::TearDown();
  }
  // Ends the test where there is no program in ncu's place.
  bool use_fake_ncu(const char* behaviour = "") const {
    const char* folder = std::getenv("ATTN_FAKE_NCU");
    if (folder == nullptr) return false;
    ::setenv("PATH", (std::string(folder) + ":" + path_).c_str(), 1);
    ::setenv("FAKE_NCU", behaviour, 1);
    return true;
  }
  Json rows(const std::string& arguments) const {
    const Result result = attn(arguments + " --json -");
    EXPECT_EQ(result.code, 0) << result.text();
    return Json::parse(result.out, nullptr, false)["results"];
  }

 private:
  std::string path_ = std::getenv("PATH");
};

TEST_F(CudaIo, CountsThePlanOfTheGpu) {
  const Json row = rows("io b1_n64_h1_d32_f32 --device cuda --algorithm flash_attention")[0];
  EXPECT_EQ(row["plan"]["backend"], "cuda");
  EXPECT_TRUE(row["plan"]["target"].get<std::string>().starts_with("forward_flash_attention sm_"));
  EXPECT_GE(row["fast_bytes"], 65536);  // shared memory of a block of threads
  EXPECT_FALSE(row.contains("measured"));
}

TEST_F(CudaIo, CountsOnePass) {
  if (!use_fake_ncu()) GTEST_SKIP() << "skipped: ncu is another's";
  // What algorithm 3 launches, and no forward pass before it; launch i of counter j gives (j + 1)
  // 10^6 + i.
  const Json row =
      rows("io b1_n64_h1_d32_f32 --device cuda --measure --phase backward --algorithm standard")[0];
  const Json& counters = row["measured"]["counters"];
  EXPECT_EQ(counters["launches"], 4);
  EXPECT_EQ(counters["l2_read_bytes"], 4 * 1e6 + 6);
  EXPECT_EQ(counters["l2_written_bytes"], 4 * 2e6 + 6);
  EXPECT_EQ(counters["dram_read_bytes"], 4 * 3e6 + 6);
  EXPECT_EQ(counters["dram_written_bytes"], 4 * 4e6 + 6);
  EXPECT_EQ(counters["shared_bytes"], 128 * (4 * 5e6 + 6));
  // The kernel that --kernel names is the one that is counted.
  const Json simt = rows(
      "io b1_n64_h1_d32_bf16 --device cuda --measure --phase backward --algorithm "
      "flash_attention_2 --kernel backward_simt")[0];
  EXPECT_EQ(simt["measured"]["counters"]["launches"], 4);
  const Result table = attn(
      "io b1_n64_h1_d32_f32 --device cuda --measure --algorithm flash_attention,flash_decoding");
  EXPECT_EQ(table.code, 0) << table.text();
  EXPECT_TRUE(table.out_has("plan         L2       DRAM     shared\n")) << table.text();
  EXPECT_TRUE(table.out_has("2.86 MiB   6.68 MiB    610 MiB\n")) << table.text();
}

TEST_F(CudaIo, LeavesAColumnEmptyWithoutItsCounter) {
  if (!use_fake_ncu("no_dram")) GTEST_SKIP() << "skipped: ncu is another's";
  const Json row =
      rows("io b1_n64_h1_d32_f32 --device cuda --measure --algorithm flash_attention")[0];
  EXPECT_TRUE(row["measured"]["counters"]["dram_read_bytes"].is_null());
  EXPECT_EQ(row["measured"]["counters"]["l2_written_bytes"], 2e6);
}

TEST_F(CudaIo, SaysWhichPassThereIsNotAndGoesOn) {
  if (!use_fake_ncu()) GTEST_SKIP() << "skipped: ncu is another's";
  const Json both = rows(
      "io b1_n64_h1_d32_f32 --device cuda --measure --phase backward --algorithm "
      "memory_efficient,standard");
  EXPECT_TRUE(both[0]["measured"]["counters"].is_null());
  EXPECT_NE(both[0]["measured"]["no_counters"].get<std::string>().find("memory_efficient"),
            std::string::npos);
  EXPECT_EQ(both[1]["measured"]["counters"]["launches"], 4);
}

TEST_F(CudaIo, Refusals) {
  const std::string problem = "io b1_n64_h1_d32_f32 --device cuda --measure";
  if (use_fake_ncu("refuse")) {
    expect_refused(problem, 3,
                   {"counted nothing of b1_n64_h1_d32_f32", "ended with 1", "NVGPUCTRPERM"});
  }
  ::setenv("PATH", "/nonexistent", 1);
  expect_refused(problem, 3, {"--measure", "ncu (Nsight Compute)", "PATH"});
  expect_refused("io b1_n64_h1_d32_f32 --device cuda --arch sm_90a", 2,
                 {"--device is cuda", "--arch"});
  expect_refused("io b1_n64_h1_d32_f32 --device cuda --multiprocessors 4", 2,
                 {"--multiprocessors", "leave them out"});
  expect_refused("io b1_n64_h1_d32_f32 --device cuda:77", 2, {"77"});
}

}  // namespace
}  // namespace attn::io
