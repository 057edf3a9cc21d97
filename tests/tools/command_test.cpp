// The built command, as a shell sees it: exit codes, texts, files.
#include <nlohmann/json.hpp>

#include "command_test_util.hpp"
#include "io/npy.hpp"
#include "io/safetensors.hpp"
#include "xml_check.hpp"

namespace attn::io {
namespace {

TEST_F(Command, HelpHasExamples) {
  for (const std::string sub : {"info", "run", "check", "bench", "compile"}) {
    const Result result = attn(sub + " --help");
    EXPECT_EQ(result.code, 0);
    EXPECT_TRUE(result.out_has("Examples:\n  attn " + sub)) << result.text();
  }
  EXPECT_EQ(attn("--help").code, 0);
  EXPECT_TRUE(attn("--version").out_has("attn "));
}

TEST_F(Command, Info) {
  const Result result = attn("info --threads 1");
  EXPECT_EQ(result.code, 0) << result.text();
  for (const std::string_view part :
       {"portable", "available", "cuda         ", "flash_attention_2", "threads"}) {
    EXPECT_TRUE(result.out_has(part)) << part << "\n" << result.text();
  }
}

TEST_F(Command, InfoTellsWhatIsMissingForAGpu) {
  const Result result = attn("info");
  const bool gpu = result.out_has("cuda         available");
  EXPECT_NE(gpu, result.out_has("cuda         not available: the ")) << result.text();
  EXPECT_EQ(gpu, result.out_has("cuda:0")) << result.text();
}

// Tiles would be counted for years, without a word.
TEST_F(Command, IoOfHugeProblems) {
  expect_refused("io b1_n999999999_h1_d64", 2, {"b1_n999999999_h1_d64", "tiles", "at most 1e+08"});
  expect_refused("io b1_n999999999_h1_d64_causal --phase backward", 2, {"tiles"});
}

TEST_F(Command, CompileRefusals) {
  const std::string problem = "b1_n64_h2_d64_bf16";
  expect_refused("compile", 2, {"descriptors"});
  expect_refused("compile nonsense --arch sm_90a", 2, {"nonsense"});
  expect_refused("compile " + problem + " --arch h100", 2, {"\"h100\"", "sm_90a"});
  expect_refused("compile " + problem + " --arch sm_90a --phase sideways", 2, {"sideways"});
}

TEST_F(Command, BadUsage) {
  expect_refused("", 2, {"subcommand"});
  expect_refused("fly", 2, {"fly"});
  expect_refused("run --threads 0", 2, {"--threads"});
  expect_refused("run --no-such-option", 2, {"--no-such-option"});
  expect_refused("run", 2, {"--q", "--input"});
  expect_refused("run --input /nonexistent", 2, {"/nonexistent", "No such file"});
  expect_refused(fmt::format("run --input {} --v x", kSample), 2, {"\"x\"", "k, q, v"});
  expect_refused(fmt::format("run --input {} --dtype f8", kSample), 2, {"f8"});
  expect_refused(fmt::format("run --input {} --mask 'query >='", kSample), 2, {"column 9"});
  expect_refused(fmt::format("run --input {} --mask nonsense", kSample), 2, {"nonsense"});
  expect_refused(fmt::format("run --input {} --algorithm fast", kSample), 2, {"fast", "standard"});
  expect_refused(fmt::format("run --input {} --buffer slopes", kSample), 2, {"slopes"});
  expect_refused(fmt::format("run --input {} --lse --output o.npy", kSample), 2, {"--lse"});
  expect_refused(fmt::format("run --input {} --max-logit --output o.npy", kSample), 2,
                 {"--max-logit"});
  expect_refused(fmt::format("run --input {} --window 3", kSample), 2, {"--window is 3"});
  expect_refused(fmt::format("run --input {} --softcap nan", kSample), 2,
                 {"--softcap is nan; accepted is a finite number above 0"});
  expect_refused(fmt::format("run --input {} --scale inf", kSample), 2, {"--scale is inf"});
  expect_refused(fmt::format("run --input {} --problem causal_x3", kSample), 2,
                 {"--problem causal_x3", "x3"});
  expect_refused("check b1_n16_x7", 2, {"x7"});
  expect_refused("bench", 2, {"descriptors"});
  expect_refused("bench @/nonexistent", 2, {"/nonexistent"});
  expect_refused(fmt::format("run --input {}", quoted("err")), 2, {"safetensors"});
}

TEST_F(Command, RunsTheSampleVerified) {
  const Result result = attn(fmt::format("run --input {} --output {} --lse --max-logit --verify",
                                         kSample, quoted("o.safetensors")));
  EXPECT_EQ(result.code, 0) << result.text();
  EXPECT_TRUE(result.out_has("b1_n505_h12_d32_f32")) << result.text();
  EXPECT_TRUE(result.out_has("verified  all rows against fp64: ok")) << result.text();
  const SafetensorsFile file(path("o.safetensors"));
  const Array o = file.read("o");
  EXPECT_EQ(o.tensor().rank, 4);
  EXPECT_EQ(o.tensor().shape, (std::array<std::int64_t, 4>{1, 505, 12, 32}));
  EXPECT_EQ(file.read("lse").tensor().size(), 12 * 505);
  EXPECT_TRUE(result.out_has("max_logit")) << result.text();
  EXPECT_EQ(file.read("max_logit").tensor().size(), 12);
}

TEST_F(Command, EveryOptionOfAProblem) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  const auto store_f32 = [&](const char* name, std::initializer_list<std::int64_t> shape) {
    const Array array(DType::f32, {shape.begin(), shape.size()});
    auto* values = static_cast<float*>(array.tensor().data);
    for (std::int64_t i = 0; i < array.tensor().size(); ++i) values[i] = normal(random);
    write_npy(path(name), array.tensor());
  };
  store_f32("q.npy", {50, 4, 16});
  store_f32("k.npy", {70, 2, 16});
  store_f32("v.npy", {70, 2, 24});
  store_f32("w.npy", {4});
  store_f32("bias.npy", {1, 4, 50, 70});
  const std::int32_t ids[70] = {};
  write_npy(path("ids.npy"), tensor(ids, {70}));
  const std::string base =
      fmt::format("run --q {} --k {} --v {} --verify --output {}", quoted("q.npy"), quoted("k.npy"),
                  quoted("v.npy"), quoted("o.npy"));
  for (const std::string& options : std::initializer_list<std::string>{
           "",
           "--causal",
           "--window 20,5",
           "--window=-1,0",
           "--softcap 5 --alibi",
           "--scale 0.5",
           "--mask 'query >= key && query - key < 9'",
           "--mask causal_window9x0",
           "--score score-1.0",
           "--score 2.0-score",
           "--score 'min(score, inf)'",
           "--score 'score - w[head] * 0.5' --buffer w=" + quoted("w.npy"),
           "--mask 'key <= query + w' --scalar w=-3",
           "--score 'score * w' --scalar w=2 --problem 'scalar(w:f32)'",
           "--bias " + quoted("bias.npy"),
           "--sink " + quoted("w.npy"),
           "--documents " + quoted("ids.npy"),
           "--problem dropout0.25_seed3",
           "--dtype f16",
           "--backend reference",
           "--algorithm standard",
           "--isa portable --threads 1"}) {
    const Result result = attn(fmt::format("{} {}", base, options));
    EXPECT_EQ(result.code, 0) << options << "\n" << result.text();
    EXPECT_TRUE(result.out_has("against fp64: ok")) << options << "\n" << result.text();
    const Array o = read_npy(path("o.npy"));
    EXPECT_EQ(o.tensor().rank, 3) << options;
    EXPECT_EQ(o.tensor().shape, (std::array<std::int64_t, 4>{50, 4, 24, 0})) << options;
  }
  expect_refused(base + " --dtype bf16", 2, {"bf16", ".npy"});
  expect_refused(base + " --sink " + quoted("q.npy"), 2, {"sink"});
  expect_refused(base + " --score 'score + w[head]'", 2, {"w"});
}

TEST_F(Command, OptionsWithoutEffectAreRefused) {
  const std::string sample = fmt::format("run --input {} ", kSample);
  for (const std::string& command :
       {std::string("check b1_n8_d8"), std::string("bench b1_n8_d8"), sample}) {
    expect_refused(command + " --kernel forward_sm90", 2, {"--kernel is forward_sm90", "cuda"});
    expect_refused(command + " --backend reference --isa portable", 2, {"--isa is portable"});
    expect_refused(command + " --backend reference --algorithm standard", 2,
                   {"--algorithm is standard"});
  }
  for (const std::string option :
       {"--output", "--softcap", "--mask", "--scale", "--problem", "--sink", "--bias", "--device",
        "--kernel", "--isa", "--dtype", "--algorithm", "--backend", "--window", "--q"}) {
    expect_refused(sample + option + " ''", 2, {option, "empty"});
  }
  for (const std::string option : {"--json", "--plot", "--algorithm", "--device"}) {
    expect_refused("bench b1_n8_d8 " + option + " ''", 2, {option, "empty"});
  }
  expect_refused("check ''", 2, {"descriptors", "empty"});
  expect_refused("check b1_n8_d8 --random 2", 2, {"b1_n8_d8", "--random 2"});
  expect_refused("info --isa portable", 2, {"--isa", "--measure"});
}

TEST_F(Command, NumbersOutOfRange) {
  for (const std::string value : {"-1", "nan", "inf", "1s"}) {
    expect_refused("bench b1_n8_d8 --seconds " + value, 2,
                   {"--seconds: " + value + " is given", "a finite number of seconds, 0 or more"});
  }
  expect_refused("bench b1_n8_d8 --repeat 0", 2, {"--repeat: 0 is given", "from 1 to"});
  expect_refused("check --random -1", 2, {"--random: -1 is given"});
  expect_refused("check b1_n8_d8 --seed -1", 2, {"--seed: -1 is given"});
  expect_refused("explain n8_d8 -o page.html --seed -1", 2, {"--seed: -1 is given"});
  expect_refused("info --threads 010", 2, {"--threads: 010 is given", "without zeros before it"});
  expect_refused("check b1_n8_d8 --threads 4097", 2, {"--threads: 4097 is given", "1 to 4096"});
  // Before the first row.
  const Result late = attn("bench b1_n8_d8 --repeat 1 --algorithm standard,fast");
  EXPECT_EQ(late.code, 2);
  EXPECT_EQ(late.out, "");
}

TEST_F(Command, BytesOfArgumentsAreNotEchoed) {
  store("binary", std::string("b1_n8_d8 \x1b[31m\n\x07", 16));
  expect_refused("check @" + path("binary").native(), 2, {"binary", "line 1", "0x1b"});
  expect_refused("check @" + path("").native(), 2, {"directory"});
  expect_refused("check @/dev/zero", 2, {"/dev/zero", "more than 16 MiB"});
  store("word", "--red\xff\xfe");
  for (const std::string& command :
       {"check @" + path("word").native(), std::string("check \"$(printf '\\033[31m')\""),
        std::string("\"$(printf '\\033[31m')\"")}) {
    const Result result = attn(command);
    EXPECT_EQ(result.code, 2) << result.text();
    EXPECT_TRUE(std::all_of(result.err.begin(), result.err.end(), [](char c) {
      return c == '\n' || (c >= 0x20 && c < 0x7f);
    })) << result.text();
  }
}

// A message says the beginning of a long argument, and still what is accepted.
TEST_F(Command, LongArgumentsAreShortened) {
  const std::string hostile(3000, 'x');
  std::string words, lengths;
  for (int i = 0; i < 2000; ++i) {
    words += " x";
    lengths += ",8";
  }
  store("words", "--phase " + hostile);
  struct Call {
    std::string arguments, part;
  };
  for (const Call& call : {Call{"check --phase " + hostile, "not in {forward,"},
                           {"check --phase=" + hostile, "not in {forward,"},
                           {"check @" + path("words").native(), "not in {forward,"},
                           {"check --" + hostile, "not expected"},
                           {"info " + hostile, "not expected"},
                           {"info" + words, "not expected"},
                           {"info --measure=" + hostile, "--measure"},
                           {"matmul 2,2,2 --density " + hostile, "--density"},
                           {"compile b1_n8_h1_d8 --arch " + hostile, "accepted are names as"},
                           {"io b1_n8_h1_d8 --kernel " + hostile, "accepted is with --arch"},
                           {"io b2001_n8_h1_d8/usedk8" + lengths, "cases of full lengths"},
                           {"check @" + hostile, "a text file of arguments is expected"}}) {
    const Result result = attn(call.arguments);
    EXPECT_EQ(result.code, 2) << result.text();
    EXPECT_TRUE(result.err_has(call.part)) << result.text();
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.text();
    EXPECT_LT(result.err.size(), 1200) << call.arguments.substr(0, 40);
  }
}

// Nor those of a path that is told to have been written.
TEST_F(Command, BytesOfPathsAreNotEchoed) {
  const std::string escape = "\"$(printf '" + path("").native() + "/%s\\033[31m\\377.npy')\"";
  for (const std::string& command :
       {fmt::format("run --input {} --seconds 0 --output ", kSample) + escape,
        "bench b1_n8_h1_d8 --repeat 1 --plot " + escape, "explain b1_n8_h1_d8 --output " + escape,
        "matmul 2,2,2 --seconds 0 --plot " + escape,
        "check b1_n8_h1_d8 --isa portable --json " + escape}) {
    const Result result = attn(command);
    EXPECT_EQ(result.code, 0) << result.text();
    EXPECT_TRUE(result.out_has("\\x1b[31m\\xff.npy")) << result.text();
    EXPECT_EQ(result.out.find('\033'), std::string::npos) << result.text();
  }
}

TEST_F(Command, RunTakesTheNumberOfAScalar) {
  const std::string run = fmt::format("run --input {} --seconds 0 --output ", kSample);
  const auto written = [&](const std::string& options) {
    const Result result = attn(run + quoted("o.npy") + " " + options);
    EXPECT_EQ(result.code, 0) << result.text();
    return load(path("o.npy"));
  };
  const std::string expected = written("--mask 'key<=query+12'");
  const std::string mask = "--mask 'key<=query+w' --scalar w=12 ";
  EXPECT_EQ(written(mask), expected);
  EXPECT_EQ(written(mask + "--problem 'scalar(w:i32)'"), expected);
  EXPECT_EQ(written(mask + "--problem 'scalar(w=5)'"), expected);
}

// Tensors and text must describe the same problem.
TEST_F(Command, RunRefusesWhatDoesNotFitTogether) {
  const std::string sample = fmt::format("run --input {} ", kSample);
  expect_refused(sample + "--problem h3", 2, {"f32[1, 505, 12, 32]", "f32[1, 505, 3, 32]"});
  expect_refused(sample + "--problem bf16", 2, {"--problem says bf16", "--dtype bf16"});
  expect_refused(sample + "--problem packed", 2, {"--q", "[total, heads, head_dim]"});
  expect_refused(sample + "--problem paged16", 2, {"page_table"});
  expect_refused(sample + "--problem sink", 2, {"sink"});
  expect_refused(sample + "--problem bias", 2, {"bias"});
  expect_refused(sample + "--cu-seqlens-q lengths", 2, {"\"lengths\"", "k, q, v"});
  expect_refused(sample + "--buffer w=q", 2, {"--buffer is w", "reads"});
  expect_refused(sample + "--buffer w=q --buffer w=k", 2, {"w=k", "once"});
  const std::string scalar = sample + "--mask 'key<w' --problem 'scalar(w:i32)' ";
  expect_refused(scalar, 2, {"'w'", "without a value"});
  expect_refused(scalar + "--scalar w=1.5", 2, {"w=1.5", "whole number"});
  expect_refused(scalar + "--scalar w=q", 2, {"--scalar is w=q", "name=number"});
  expect_refused(scalar + "--scalar w=1 --scalar w=2", 2, {"w=2", "once"});
  expect_refused(sample + "--scalar w=1", 2, {"--scalar is w", "reads"});
  expect_refused(sample + "--backward", 2, {"\"d_o\"", "--d-o"});
  expect_refused(sample + "--d-o q", 2, {"--d-o is q", "--backward"});
  expect_refused(sample + "--backward --d-o q --output o.npy", 2, {"--backward", ".npy"});
  expect_refused(sample + "--dtype bf16 --output o.npy", 2, {"bf16", ".npy"});
  const float w[12] = {};
  write_npy(path("w.npy"), tensor(w, {12}));
  expect_refused(sample + "--backward --d-o q --score 'score+q[head]' --buffer q=" +
                     quoted("w.npy") + " --output " + quoted("o.safetensors"),
                 2, {"dq"});
  EXPECT_EQ(attn(sample + "--d-o q --backward --verify --seconds 0 --problem sink --sink " +
                 quoted("w.npy"))
                .code,
            0);
}

TEST_F(Command, Check) {
  const Result listed = attn("check b1_n33_h2_d16_causal b1_sq1_sk40_hq4_hk2_d16_f16/strided");
  EXPECT_EQ(listed.code, 0) << listed.text();
  EXPECT_TRUE(listed.out_has("ok      b1_n33_h2_d16_causal_f32")) << listed.text();
  EXPECT_TRUE(listed.out_has("2 cases")) << listed.text();
  EXPECT_TRUE(listed.out_has("0 failed")) << listed.text();
  EXPECT_TRUE(listed.out_has("of the allowed error")) << listed.text();
  const Result random = attn("check --random 3 --seed 7 --phase forward --isa portable");
  EXPECT_EQ(random.code, 0) << random.text();
  EXPECT_TRUE(random.out_has("3 cases")) << random.text();
}

TEST_F(Command, Bench) {
  store("suite.txt",
        "# comment\n--repeat 2 --threads 1 --algorithm standard,automatic\nb1_n64_h2_d16\n\n"
        "b1_n128_h2_d16 # and another\n");
  for (const std::string phase : {"forward", "backward"}) {
    const Result result =
        attn(fmt::format("bench @{} --phase {} --json {} --plot {}", path("suite.txt").native(),
                         phase, quoted("r.json"), quoted("p.svg")));
    ASSERT_EQ(result.code, 0) << result.text();
    EXPECT_EQ(result.err, "");  // no progress bar in a pipe
    const auto json = nlohmann::json::parse(load(path("r.json")));
    for (const char* key : {"command", "date", "version", "commit", "machine"}) {
      EXPECT_TRUE(json.contains(key)) << key;
    }
    ASSERT_EQ(json["results"].size(), 4U);
    for (const auto& row : json["results"]) {
      EXPECT_TRUE(row["correct"].get<bool>());
      EXPECT_EQ(row["phase"], phase);
      EXPECT_GT(row["seconds_median"].get<double>(), 0);
      EXPECT_GT(row["peak_gflops"].get<double>(), 0);
      EXPECT_EQ(row["calls"], 2);
    }
    const std::string svg = load(path("p.svg"));
    EXPECT_EQ(xml_error(svg), "");
    EXPECT_NE(svg.find(">standard</text>"), std::string::npos);
  }
}

TEST_F(Command, WhatIsNotThere) {
  expect_refused("check b1_n8_d8 --isa avx1024", 2, {"avx1024"});
  const Result paged = attn("bench b1_sq2_sk40_d16_paged8 --phase backward --repeat 1");
  EXPECT_EQ(paged.code, 3) << paged.text();
}

}  // namespace
}  // namespace attn::io
