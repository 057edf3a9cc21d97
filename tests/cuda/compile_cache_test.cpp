// Compilation with the disk cache, and dumps. Needs NVRTC, no GPU.
#include <sys/wait.h>

#include <fstream>
#include <iterator>
#include <vector>

#include "cuda/jit/compile.hpp"
#include "cuda/support.hpp"
#include "cuda/temporary_folder.hpp"

namespace attn::cuda {
namespace {

constexpr Arch kHopper{90, true};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
}

// A context that keeps its warnings.
struct Log {
  std::vector<std::string> messages;
  Context context{.log = [this](std::string_view message) { messages.emplace_back(message); }};
};

TEST(CompileCache, TheSecondTimeIsRead) {
  ATTN_NEEDS_NVRTC();
  const TemporaryFolder folder;
  const Environment cache("ATTN_CACHE_DIR", folder.path());
  Log log;
  const Compiled first = compile(scale_source(), kHopper, log.context);
  const Compiled second = compile(scale_source(), kHopper, log.context);
  EXPECT_FALSE(first.report.from_cache);
  EXPECT_TRUE(second.report.from_cache);
  EXPECT_EQ(first.cubin, second.cubin);
  EXPECT_EQ(first.report.registers, second.report.registers);
  EXPECT_EQ(folder.files(), 1);
  EXPECT_TRUE(log.messages.empty());
}

TEST(CompileCache, WhatTheKernelDependsOnIsInTheKey) {
  ATTN_NEEDS_NVRTC();
  const TemporaryFolder folder;
  const auto compiled = [&](const Source& source, Arch arch) {
    return compile_into(source, arch, {}, folder.path()).report.from_cache;
  };
  EXPECT_FALSE(compiled(scale_source(), kHopper));
  EXPECT_FALSE(compiled(scale_source("3"), kHopper));
  EXPECT_FALSE(compiled(scale_source(), {90, false}));
  EXPECT_FALSE(compiled(scale_source(), {80, false}));
  Source options = scale_source();
  options.options = {"--use_fast_math"};
  EXPECT_FALSE(compiled(options, kHopper));
  Source name = scale_source();
  name.name = "../else where";  // a file name all the same
  EXPECT_FALSE(compiled(name, kHopper));
  EXPECT_EQ(folder.files(), 6);
  EXPECT_TRUE(compiled(scale_source(), kHopper));
}

TEST(CompileCache, DamagedFilesAreCompiledAnew) {
  ATTN_NEEDS_NVRTC();
  const TemporaryFolder folder;
  const auto again = [&] { return compile_into(scale_source(), kHopper, {}, folder.path()); };
  const std::vector<char> cubin = again().cubin;
  const std::string file = folder.file();
  const std::string whole = read(file);
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 4);
  for (const std::string& damaged :
       {flipped, whole.substr(0, whole.size() - 1), whole.substr(0, 10), std::string{}}) {
    write(file, damaged);
    const Compiled compiled = again();
    EXPECT_FALSE(compiled.report.from_cache);
    EXPECT_EQ(compiled.cubin, cubin);
    EXPECT_EQ(read(file), whole);
  }
  EXPECT_TRUE(again().report.from_cache);
}

// Kernels are compiled each time, and told of once.
void expect_one_warning(const std::string& folder, const std::string& part) {
  const Environment cache("ATTN_CACHE_DIR", folder);
  Log log;
  for (const char* factor : {"2", "2", "3"}) {
    const Compiled compiled = compile(scale_source(factor), kHopper, log.context);
    EXPECT_FALSE(compiled.cubin.empty());
    EXPECT_FALSE(compiled.report.from_cache);
  }
  ASSERT_EQ(log.messages.size(), 1U);
  expect_contains(log.messages[0], folder);
  expect_contains(log.messages[0], part);
  expect_contains(log.messages[0], "compiled anew");
}

TEST(CompileCache, ReadOnlyFolder) {
  ATTN_NEEDS_NVRTC();
  const TemporaryFolder folder;
  const OrdinaryUser user(folder.path());
  ASSERT_EQ(chmod(folder.path().c_str(), 0500), 0);
  expect_one_warning(folder.path(), "Permission denied");
  expect_contains(
      refusal(ErrorCode::io, [&] { compile_into(scale_source(), kHopper, {}, folder.path()); }),
      "Permission denied");
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
}

TEST(CompileCache, FolderThatOthersCanWrite) {
  ATTN_NEEDS_NVRTC();
  const TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  expect_one_warning(folder.path(), "others can write it");
  EXPECT_EQ(folder.files(), 0);
}

TEST(CompileCache, FolderThatCannotBeMade) {
  ATTN_NEEDS_NVRTC();
  expect_one_warning("/proc/attn/cache", "cannot be made");
}

TEST(CompileCache, ProcessesRace) {
  ATTN_NEEDS_NVRTC();
  const TemporaryFolder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int result = 1;
      try {
        const Compiled one = compile_into(scale_source(), kHopper, {}, folder.path());
        const Compiled two = compile_into(scale_source(), kHopper, {}, folder.path());
        result = two.report.from_cache && one.cubin == two.cubin ? 0 : 2;
      } catch (const std::exception&) {
        result = 3;
      }
      _exit(result);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  EXPECT_EQ(folder.files(), 1);
}

TEST(Dump, WritesWhatIsAskedFor) {
  ATTN_NEEDS_NVRTC();
  const TemporaryFolder folder, cache_folder;
  const Environment cache("ATTN_CACHE_DIR", cache_folder.path());
  const Environment where("ATTN_DUMP_DIR", folder / "dump");
  const auto dumped = [&] {
    std::string suffixes;
    for (const char* suffix : {".cu", ".ptx", ".cubin", ".txt"}) {
      for (const auto& file : std::filesystem::directory_iterator(folder / "dump")) {
        EXPECT_TRUE(file.path().filename().string().starts_with("scale-sm_90a-"));
        if (file.path().extension() == suffix && file.file_size() > 0) suffixes += suffix;
      }
    }
    return suffixes;
  };
  {
    const Environment what("ATTN_DUMP", "source,report");
    EXPECT_TRUE(compile(scale_source(), kHopper, {}).ptx.empty());
    EXPECT_EQ(dumped(), ".cu.txt");
  }
  // From the cache now; PTX is not in it.
  const Environment what("ATTN_DUMP", "source,ptx,cubin,report");
  const Compiled compiled = compile(scale_source(), kHopper, {});
  EXPECT_EQ(dumped(), ".cu.ptx.cubin.txt");
  expect_contains(compiled.ptx, ".entry scale");
  for (const auto& file : std::filesystem::directory_iterator(folder / "dump")) {
    const std::string text = read(file.path());
    const std::string suffix = file.path().extension().string();
    if (suffix == ".txt") expect_contains(text, " registers");
    EXPECT_TRUE(suffix != ".cu" || text == scale_source().text);
    EXPECT_TRUE(suffix != ".ptx" || text == compiled.ptx);
  }
}

TEST(Dump, WhatIsWrongIsTold) {
  ATTN_NEEDS_NVRTC();
  const TemporaryFolder cache_folder;
  const Environment cache("ATTN_CACHE_DIR", cache_folder.path());
  const Environment what("ATTN_DUMP", "source,sass");
  const Environment where("ATTN_DUMP_DIR", "/proc/attn");
  Log log;
  EXPECT_FALSE(compile(scale_source(), kHopper, log.context).cubin.empty());
  ASSERT_EQ(log.messages.size(), 2U);
  expect_contains(log.messages[0], "\"sass\"; accepted are source, ptx, cubin and report");
  expect_contains(log.messages[1], "/proc/attn");
}

}  // namespace
}  // namespace attn::cuda
