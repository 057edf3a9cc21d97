// What the command does to its outputs, and when it is interrupted.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command_test_util.hpp"

namespace attn::io {
namespace {

using CommandOutput = Command;

// Refused with exit code 2 and one line, before anything of the work is seen.
TEST_F(CommandOutput, UnwritableOutputsAreRefusedBeforeTheWork) {
  const auto file = store("read-only", "before");
  ASSERT_EQ(::chmod(file.c_str(), 0444), 0);
  const std::string nowhere = quoted("no/such/folder");
  for (const std::string& path : {quoted("read-only"), nowhere, quoted("")}) {
    for (const std::string& command : {fmt::format("run --input {} --output {}", kSample, path),
                                       "bench b1_n16_h1_d8 --repeat 1 --json " + path,
                                       "bench b1_n16_h1_d8 --repeat 1 --plot " + path}) {
      expect_refused(command, 2, {"cannot be written"});
      EXPECT_EQ(attn(command).out, "") << command;
    }
  }
  EXPECT_EQ(load(file), "before");
  expect_refused("bench b1_n16_h1_d8 --repeat 1 --json same --plot same", 2, {"--plot", "--json"});
}

// Two results in one file, or a result over the tensors that were read, would lose one of them.
TEST_F(CommandOutput, OneFileForTwoPurposesIsRefused) {
  const std::string tensors = load(kSample);
  const auto file = store("tensors.safetensors", tensors);
  std::filesystem::create_symlink("tensors.safetensors", path("link"));
  std::filesystem::create_symlink("nothing-yet", path("dangling"));
  const std::string input = quoted("tensors.safetensors");
  for (const std::string& same : {input, quoted("link"), quoted("./tensors.safetensors")}) {
    for (const std::string option : {"--output", "--json"}) {
      expect_refused(fmt::format("run --input {} {} {}", input, option, same), 2,
                     {option, "tensors that are read"});
    }
  }
  EXPECT_EQ(load(file), tensors);
  const std::string run = fmt::format("run --input {} --output ", kSample);
  expect_refused(run + quoted("new") + " --json " + quoted("new"), 2, {"--output", "--json"});
  expect_refused(run + quoted("dangling") + " --json " + quoted("nothing-yet"), 2,
                 {"--output", "--json"});
  expect_refused("matmul 2,2,2 --json same --plot same", 2, {"--plot", "--json"});
  EXPECT_EQ(attn("matmul 2,2,2 --seconds 0 --json /dev/null --plot /dev/null").code, 0);
}

// "-" is standard output for --json, and a file of this name is most likely not meant.
TEST_F(CommandOutput, ADashIsNoFile) {
  expect_refused(fmt::format("run --input {} --output -", kSample), 2, {"./-"});
  expect_refused("bench b1_n16_h1_d8 --repeat 1 --plot -", 2, {"./-"});
  expect_refused("explain b1_n8_h1_d8 --output -", 2, {"./-"});
  EXPECT_FALSE(std::filesystem::exists("-"));
}

TEST_F(CommandOutput, TheFileOfStandardOutputIsRefused) {
  expect_refused(fmt::format("run --input {} --output {}", kSample, quoted("out")), 2,
                 {"standard output"});
}

TEST_F(CommandOutput, FullDiskOnStandardOutput) {
  for (const std::string command :
       {"info", "--help", "run --help", "check b1_n16_h1_d8 --isa portable",
        "bench b1_n16_h1_d8 --repeat 1"}) {
    const std::string line =
        fmt::format("'{}' {} >/dev/full 2>'{}'", ATTN_COMMAND, command, path("err").native());
    const int status = std::system(line.c_str());
    ASSERT_TRUE(WIFEXITED(status)) << command;
    EXPECT_EQ(WEXITSTATUS(status), 2) << command;
    EXPECT_NE(load(path("err")).find("standard output cannot be written"), std::string::npos)
        << command << "\n"
        << load(path("err"));
  }
}

// Closed ones are lent to no file that the command opens, and a message that nobody can read ends
// nothing.
TEST_F(CommandOutput, ClosedAndFullStandardFiles) {
  const auto code = [&](const std::string& line) {
    const int status = std::system(fmt::format("'{}' {}", ATTN_COMMAND, line).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const std::string run = fmt::format("run --input {} --seconds 0 --output ", kSample);
  EXPECT_EQ(code(run + quoted("o") + " >/dev/null"), 0);
  EXPECT_EQ(code(run + quoted("closed") + " >&- 2>&-"), 2);
  EXPECT_EQ(load(path("closed")), load(path("o")));
  EXPECT_EQ(code(run + quoted("closed") + " >&-  2>/dev/full"), 2);
  for (const std::string refused : {"check n8", "check b1_n8_q", "run --input nothing", "--red"}) {
    EXPECT_EQ(code(refused + " >/dev/null 2>/dev/full"), 2) << refused;
    EXPECT_EQ(code(refused + " >&- 2>&-"), 2) << refused;
  }
}

// A limit of the shell, 1 block of 512 bytes, is told as a full disk is, and what was there stays.
TEST_F(CommandOutput, FilesPastTheLimitOfTheShell) {
  const auto file = store("o.safetensors", "before");
  const std::string line =
      fmt::format("ulimit -f 1; '{}' run --input {} --seconds 0 --output '{}' >/dev/null 2>&1",
                  ATTN_COMMAND, kSample, file.native());
  const int status = std::system(line.c_str());
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_EQ(load(file), "before");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("")), {}), 1);
}

// A row takes moments, the next one minutes: interrupted in between.
TEST_F(CommandOutput, InterruptKeepsFinishedRowsAndClearsTheProgressLine) {
  int terminal = -1, terminal_end = -1, out[2];
  ASSERT_EQ(::openpty(&terminal, &terminal_end, nullptr, nullptr, nullptr), 0);
  ASSERT_EQ(::pipe(out), 0);
  const std::string json = path("rows.json").native();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(terminal_end, STDERR_FILENO);
    ::execl(ATTN_COMMAND, ATTN_COMMAND, "bench", "b1_n16_h1_d8", "b1_n4096_h16_d512", "--backend",
            "reference", "--seconds", "0", "--json", json.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(terminal_end);
  // Until the table has its header and one row, and the bar of the next row is drawn.
  std::string table, screen;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(600);
  const auto read_some = [](int from, std::string& to) {
    char bytes[4096];
    const ssize_t count = ::read(from, bytes, sizeof bytes);
    if (count > 0) to.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  };
  const auto row_is_there = [&] {
    return std::count(table.begin(), table.end(), '\n') >= 2 &&
           screen.find("1/2") != std::string::npos;
  };
  while (!row_is_there() && std::chrono::steady_clock::now() < deadline) {
    pollfd ready[2] = {{out[0], POLLIN, 0}, {terminal, POLLIN, 0}};
    ASSERT_GE(::poll(ready, 2, 100), 0);
    if ((ready[0].revents & POLLIN) != 0) read_some(out[0], table);
    if ((ready[1].revents & POLLIN) != 0) read_some(terminal, screen);
  }
  EXPECT_TRUE(row_is_there()) << table << screen;
  ::kill(child, row_is_there() ? SIGINT : SIGKILL);
  while (read_some(terminal, screen)) {
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  ::close(terminal);
  ::close(out[0]);

  const std::size_t cleared = screen.rfind("\r\x1b[K");
  ASSERT_NE(cleared, std::string::npos) << screen;
  EXPECT_EQ(screen.find("1/2", cleared), std::string::npos) << screen;
  EXPECT_NE(screen.find("ended early; the 1 results so far", cleared), std::string::npos) << screen;
  const auto report = nlohmann::json::parse(load(json));
  EXPECT_FALSE(report["complete"].get<bool>());
  ASSERT_EQ(report["results"].size(), 1U);
  EXPECT_EQ(report["results"][0]["problem"], "b1_n16_h1_d8_f32");
  EXPECT_TRUE(report["results"][0]["correct"].get<bool>());
}

TEST_F(CommandOutput, ExitCodesOfProblemsThatAreNoProblems) {
  expect_refused("check n8", 2, {"head_dim is 0"});
  expect_refused("bench n8 --repeat 1", 2, {"head_dim is 0"});
  expect_refused("check b1_n8_hq3_hk2_d8", 2, {"heads_k"});
  expect_refused("check b1_n8_h1_d8_bias0x0", 2, {"buffer 'bias'", "accepted is [8, 8]"});
  expect_refused("check b1_n8_h1_d8_documents0", 2, {"buffer 'ids'"});
}

}  // namespace
}  // namespace attn::io
