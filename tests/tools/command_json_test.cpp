// --json of every subcommand: the shape that docs/command.md says.
#include <nlohmann/json.hpp>
#include <set>

#include "command_test_util.hpp"
#include "io/safetensors.hpp"

namespace attn::io {
namespace {

using Json = nlohmann::json;

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [key, value] : object.items()) names.insert(key);
  return names;
}

class CommandJson : public Command {
 protected:
  // The rows that `command` writes to a file and, alike in shape, to standard output alone.
  Json rows(const std::string& command, int code = 0) const {
    SCOPED_TRACE(command);
    const Result to_file = attn(command + " --json " + quoted("r.json"));
    EXPECT_EQ(to_file.code, code) << to_file.text();
    EXPECT_TRUE(to_file.out_has("results written to")) << to_file.text();
    const Json report = Json::parse(load(path("r.json")));
    const Result to_output = attn(command + " --json -");
    EXPECT_EQ(to_output.code, code) << to_output.text();
    const Json printed = Json::parse(to_output.out);
    EXPECT_EQ(keys(printed), keys(report));
    EXPECT_EQ(printed["results"].size(), report["results"].size());
    EXPECT_EQ(keys(report), (std::set<std::string>{"command", "date", "version", "commit",
                                                   "machine", "complete", "results"}));
    EXPECT_EQ(report["command"].get<std::string>().substr(0, 5), "attn ");
    EXPECT_TRUE(report["complete"].get<bool>());
    for (const char* key : {"cpu", "cpus", "l1d_bytes", "l2_bytes", "l3_bytes", "memory_bytes"}) {
      EXPECT_TRUE(report["machine"].contains(key)) << key;
    }
    return report["results"];
  }
};

const std::set<std::string> kComparison{"tensor", "share",    "error", "allowed",
                                        "where",  "expected", "got"};

TEST_F(CommandJson, Info) {
  const Json result = rows("info --threads 1 --measure");
  ASSERT_EQ(result.size(), 1U);
  EXPECT_EQ(keys(result[0]),
            (std::set<std::string>{"threads", "instruction_sets", "backends", "algorithms", "gpus",
                                   "driver", "nvrtc", "kernel_cache", "peaks"}));
  EXPECT_EQ(result[0]["threads"], 1);
  EXPECT_EQ(result[0]["instruction_sets"][0]["name"], "portable");
  EXPECT_TRUE(result[0]["instruction_sets"][0]["available"].get<bool>());
  EXPECT_EQ(result[0]["backends"].size(), 3U);
  EXPECT_EQ(result[0]["algorithms"]["forward"][0], "standard");
  EXPECT_GT(result[0]["peaks"]["f32_gflops"].get<double>(), 0);
}

TEST_F(CommandJson, Run) {
  const std::string command =
      fmt::format("run --input {} --seconds 0 --lse --verify --backward --d-o q --output {}",
                  kSample, quoted("o.safetensors"));
  const Json result = rows(command);
  ASSERT_EQ(result.size(), 1U);
  EXPECT_EQ(keys(result[0]), (std::set<std::string>{"problem", "phases", "output", "tensors"}));
  EXPECT_EQ(result[0]["problem"], "b1_n505_h12_d32_f32");
  EXPECT_EQ(result[0]["output"], path("o.safetensors").native());
  EXPECT_EQ(keys(result[0]["tensors"]), (std::set<std::string>{"o", "lse", "dq", "dk", "dv"}));
  EXPECT_EQ(result[0]["tensors"]["lse"], Json::parse(R"({"dtype":"f32","shape":[1,12,505]})"));
  ASSERT_EQ(result[0]["phases"].size(), 2U);
  for (const Json& phase : result[0]["phases"]) {
    EXPECT_EQ(keys(phase), (std::set<std::string>{"phase", "backend", "device", "algorithm", "isa",
                                                  "threads", "plan", "calls", "seconds_median",
                                                  "seconds_minimum", "gflops", "verified"}));
    EXPECT_EQ(phase["backend"], "cpu");
    EXPECT_TRUE(phase["verified"]["correct"].get<bool>());
    EXPECT_EQ(phase["verified"]["checked"], "all rows");
    for (const Json& comparison : phase["verified"]["comparisons"]) {
      EXPECT_EQ(keys(comparison), kComparison);
      EXPECT_LE(comparison["share"].get<double>(), 1);
    }
  }
  EXPECT_EQ(result[0]["phases"][0]["verified"]["comparisons"].size(), 2U);
  EXPECT_EQ(result[0]["phases"][1]["verified"]["comparisons"].size(), 3U);
  EXPECT_EQ(result[0]["phases"][1]["phase"], "backward");
}

TEST_F(CommandJson, Check) {
  const Json result = rows("check b1_n33_h2_d16 b1_sq2_sk40_d16_paged8 --isa portable");
  ASSERT_EQ(result.size(), 2U);
  for (const Json& row : result) {
    EXPECT_EQ(keys(row),
              (std::set<std::string>{"problem", "seed", "status", "passed", "failed", "unsupported",
                                     "worst", "worst_subject", "failures"}));
    EXPECT_EQ(row["status"], "ok");
    EXPECT_EQ(row["seed"], 1);
    EXPECT_GT(row["passed"].get<int>(), 0);
    EXPECT_EQ(row["failed"], 0);
    EXPECT_TRUE(row["failures"].empty());
    EXPECT_EQ(keys(row["worst"]), kComparison);
  }
  EXPECT_EQ(result[0]["problem"], "b1_n33_h2_d16_f32");
  // Random problems have a row each, printed or not.
  EXPECT_EQ(rows("check --random 3 --seed 7 --phase forward --isa portable").size(), 3U);
}

TEST_F(CommandJson, Bench) {
  const Json result =
      rows("bench b1_n64_h2_d16 b1_sq2_sk40_d16_paged8 --phase backward --repeat 2 --threads 1");
  ASSERT_EQ(result.size(), 2U);
  for (const char* key : {"problem",
                          "phase",
                          "algorithm",
                          "threads",
                          "isa",
                          "compute",
                          "correct",
                          "checked",
                          "worst",
                          "workspace_bytes",
                          "plan",
                          "calls",
                          "seconds_median",
                          "seconds_minimum",
                          "processor_seconds_median",
                          "flops",
                          "bytes",
                          "gflops",
                          "peak_gflops",
                          "share_of_peak",
                          "gbps",
                          "read_gbps",
                          "share_of_bandwidth",
                          "peak_memory_bytes"}) {
    EXPECT_TRUE(result[0].contains(key)) << key;
  }
  EXPECT_EQ(result[0]["calls"], 2);
  EXPECT_EQ(keys(result[1]),
            (std::set<std::string>{"problem", "phase", "algorithm", "threads", "refused"}));
}

TEST_F(CommandJson, Io) {
  const std::string command = "io b1_n200_h2_d16_causal_f32 --fast-bytes 20000 --block-q 32";
  const Json result = rows(command);
  ASSERT_EQ(result.size(), 4U);
  const std::set<std::string> members{"problem", "phase",      "algorithm", "fast_bytes",
                                      "block_q", "block_k",    "tiles",     "tiles_visited",
                                      "flops",   "compulsory", "model",     "plan"};
  const std::set<std::string> moved{"read_bytes", "written_bytes", "bytes", "operands"};
  for (const Json& row : result) {
    EXPECT_EQ(keys(row), members);
    EXPECT_EQ(keys(row["compulsory"]), moved);
    EXPECT_EQ(keys(row["model"]), moved);
    EXPECT_EQ(row["block_q"], 32);
    EXPECT_EQ(row["model"]["bytes"].get<double>(), row["model"]["read_bytes"].get<double>() +
                                                       row["model"]["written_bytes"].get<double>());
    EXPECT_EQ(row["plan"]["backend"], "cpu");
    EXPECT_EQ(row["plan"]["num_splits"], 1);
  }
  // 4 N d + 4 N^2 elements a head.
  EXPECT_EQ(result[0]["algorithm"], "standard");
  EXPECT_EQ(result[0]["model"]["bytes"], 2 * 4 * (4 * 200 * 16 + 4 * 200 * 200));
  EXPECT_EQ(result[0]["model"]["operands"]["s"],
            Json::parse(R"({"read_bytes":320000.0,"written_bytes":320000.0})"));
  EXPECT_LT(result[3]["tiles_visited"], result[1]["tiles_visited"]);

  const Json measured = rows(command + " --measure --algorithm flash_attention,flash_decoding");
  ASSERT_EQ(measured.size(), 2U);
  EXPECT_EQ(keys(measured[0]["measured"]["simulator"]), moved);
  EXPECT_GT(measured[0]["measured"]["seconds_median"], 0);
  EXPECT_TRUE(measured[0]["measured"].contains("counters"));
  EXPECT_TRUE(measured[1]["model"].is_null());
  EXPECT_TRUE(measured[1]["measured"]["simulator"].is_null());
  EXPECT_GT(measured[1]["plan"]["bytes"], 0);

  const Json gpu =
      rows("io b1_n4096_h16_d128_causal_bf16 --arch sm_90a --algorithm flash_attention_2");
  EXPECT_EQ(gpu[0]["plan"]["backend"], "cuda");
  EXPECT_EQ(gpu[0]["plan"]["target"], "forward_sm90 sm_90a");
  const Json backward = rows(
      "io b1_n64_h1_d64_bf16 --arch sm_90a --phase backward --algorithm "
      "flash_decoding,flash_attention_2,standard");
  EXPECT_TRUE(backward[0]["plan"].is_null());
  EXPECT_NE(backward[0]["no_plan"].get<std::string>().find("flash_decoding"), std::string::npos);
  EXPECT_EQ(backward[1]["plan"]["target"], "backward_sm90 sm_90a");
  EXPECT_EQ(backward[2]["plan"]["target"], "backward_standard sm_90a");
  // Why a column is empty is said below the table, and names the phase that was asked for.
  for (const std::string phase : {"forward", "backward"}) {
    const Result text =
        attn("io b1_n64_h1_d64_bf16 --arch sm_90a --algorithm memory_efficient --phase " + phase);
    EXPECT_TRUE(text.out_has("no plan: the cuda backend has no " + phase + " pass of memory_ef"))
        << text.text();
  }
  const Result text = attn("io b1_n64_h1_d8_f32 --algorithm flash_decoding --measure");
  EXPECT_TRUE(text.out_has("no simulation of flash_decoding: the simulator knows")) << text.text();
  expect_refused("io b1_n64_h1_d8 --algorithm automatic", 2, {"automatic", "accepted"});
  expect_refused("io b1_n64_h1_d8 --fast-bytes 0", 2, {"0 is given", "64"});
  expect_refused("io b1_n64_h1_d8 --arch sm_1", 2, {"sm_1"});
  expect_refused("io b1_n999999999_h1_d64", 2, {"3.1e+13 tiles", "at most 1e+08"});
  expect_refused("io b99999999_n8_h1_d64", 2, {"1e+08 pairs", "at most 1e+06"});
  EXPECT_EQ(attn("io b99999999_n8_h1_d64 --arch sm_90a").code, 0);
  // One head stands for all in the models, but the CPU's plan would visit every one for hours.
  const Result many = attn("io b1000_n100000_h1000_d64_causal");
  EXPECT_TRUE(many.out_has("no plan: 9.8e+12 tiles of 16 rows and 64 keys")) << many.text();
  expect_refused("io b1_n64_h1_d8_packed/cuq0,4", 2, {"/cuq0,4", "full lengths"});
  expect_refused("io b1_n64_h1_d8 --device gpu", 2, {"gpu", "cuda"});
  // Before a line of the first problem is printed.
  for (const std::string_view token : {"sp4", "list3", "o(f32)_bf16", "kv(i8)"}) {
    const std::string problems = fmt::format("io b1_n8_h1_d8 'b1_n8_h1_d8_{}'", token);
    expect_refused(problems, 3, {"counted"});
    EXPECT_EQ(attn(problems).out, "");
  }
}

TEST_F(CommandJson, CompileWhereNvrtcIs) {
  const std::string command =
      "compile b1_n64_h2_d64_bf16 --arch sm_90a --cache-dir " + quoted("cache");
  const Result plain = attn(command);
  if (plain.code == 3) GTEST_SKIP() << plain.err;
  ASSERT_EQ(plain.code, 0) << plain.text();
  const Json result = rows(command);
  ASSERT_GE(result.size(), 1U);
  EXPECT_EQ(keys(result[0]),
            (std::set<std::string>{"problem", "arch", "kernel", "registers", "spill_store_bytes",
                                   "spill_load_bytes", "local_bytes", "shared_bytes", "warnings",
                                   "seconds", "from_cache", "clean"}));
  EXPECT_EQ(result[0]["arch"], "sm_90a");
}

// What cannot be written is refused first.
TEST_F(CommandJson, WhatCannotBeWrittenIsRefusedFirst) {
  for (const std::string command :
       {"info", "check b1_n8_d8", "compile b1_n64_h2_d64_bf16 --arch sm_90a"}) {
    expect_refused(command + " --json " + quoted("no/such/folder"), 2, {"cannot be written"});
  }
}

// An error in the middle, here 32 TB of memory, which cannot be had, keeps what is finished.
TEST_F(CommandJson, ErrorsKeepFinishedRows) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the allocator of the sanitizer ends the program";
#endif
  const Result result =
      attn("check b1_n33_h2_d16 b1000_n1000000000_h1_d8 --isa portable --json " + quoted("r.json"));
  EXPECT_EQ(result.code, 3) << result.text();
  EXPECT_TRUE(result.err_has("ended early; the 1 results so far")) << result.text();
  const Json report = Json::parse(load(path("r.json")));
  EXPECT_FALSE(report["complete"].get<bool>());
  ASSERT_EQ(report["results"].size(), 1U);
  EXPECT_EQ(report["results"][0]["problem"], "b1_n33_h2_d16_f32");
}

}  // namespace
}  // namespace attn::io
