// The folder of compiled kernels and the format of its files. Needs nothing of CUDA.
#include "cuda/jit/disk_cache.hpp"

#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <random>
#include <vector>

#include "cuda/jit/cache_entry.hpp"
#include "cuda/support.hpp"
#include "cuda/temporary_folder.hpp"

namespace attn::cuda {
namespace {

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, PiecesAndFields) {
  Sha256 pieces;
  for (const char* piece : {"a", "", "bc"}) pieces.update(piece);
  EXPECT_EQ(pieces.finish(), sha256("abc"));
  Sha256 one, other;
  one.field("ab");
  one.field("c");
  other.field("a");
  other.field("bc");
  EXPECT_NE(one.finish(), other.finish());
}

Compiled example() {
  Compiled compiled;
  compiled.cubin = {'\x7f', 'E', 'L', 'F', '\0', '\xff'};
  compiled.report = {.registers = 168,
                     .spill_store_bytes = 8,
                     .spill_load_bytes = 16,
                     .local_bytes = 24,
                     .shared_bytes = 1024,
                     .warnings = {"first", "", "third\nline"},
                     .seconds = 0.5};
  return compiled;
}

TEST(CacheEntry, BackAsWritten) {
  const Sha256::Digest key = sha256("key");
  const std::optional<Compiled> read = from_cache_entry(key, to_cache_entry(key, example()));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->cubin, example().cubin);
  EXPECT_EQ(read->report.registers, 168);
  EXPECT_EQ(read->report.spill_store_bytes, 8);
  EXPECT_EQ(read->report.spill_load_bytes, 16);
  EXPECT_EQ(read->report.local_bytes, 24);
  EXPECT_EQ(read->report.shared_bytes, 1024);
  EXPECT_EQ(read->report.warnings, example().report.warnings);
}

// Any bit that is wrong, any byte that is missing or too many, another key: no entry.
TEST(CacheEntry, DamageIsSeen) {
  const Sha256::Digest key = sha256("key");
  const std::string bytes = to_cache_entry(key, example());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(from_cache_entry(key, bytes.substr(0, i))) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ 1 << bit);
      EXPECT_FALSE(from_cache_entry(key, damaged)) << i << " bit " << bit;
    }
  }
  EXPECT_FALSE(from_cache_entry(key, bytes + '\0'));
  EXPECT_FALSE(from_cache_entry(sha256("other"), bytes));
}

TEST(DiskCache, MakesItsFolderForThisUserAlone) {
  const TemporaryFolder folder;
  const DiskCache cache(folder / "a/b/c");
  EXPECT_EQ(cache.load("x"), std::nullopt);
  cache.store("x", "bytes");
  EXPECT_EQ(cache.load("x"), "bytes");
  cache.store("x", "others");
  EXPECT_EQ(cache.load("x"), "others");
  struct stat status {};
  for (const char* made : {"a", "a/b", "a/b/c"}) {
    ASSERT_EQ(stat((folder / made).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700U) << made;
  }
  ASSERT_EQ(stat((folder / "a/b/c/x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600U);
}

TEST(DiskCache, RefusesFoldersThatOthersCanWrite) {
  const TemporaryFolder folder;
  for (const mode_t mode : {0770U, 0707U, 01777U}) {
    ASSERT_EQ(chmod(folder.path().c_str(), mode), 0);
    expect_contains(refusal(ErrorCode::io, [&] { const DiskCache cache(folder.path()); }),
                    "others can write it");
  }
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  EXPECT_NO_THROW(DiskCache(folder.path()));
}

TEST(DiskCache, RefusesFoldersOfOthers) {
  const TemporaryFolder folder;
  std::string foreign = "/usr";  // of root
  if (geteuid() == 0) {
    ASSERT_EQ(chown(folder.path().c_str(), 12345, 12345), 0);
    foreign = folder.path();
  }
  expect_contains(refusal(ErrorCode::io, [&] { const DiskCache cache(foreign); }),
                  "it belongs to user");
}

TEST(DiskCache, RefusesWhatIsNoFolder) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  expect_contains(refusal(ErrorCode::io, [&] { const DiskCache cache(folder / "file"); }),
                  "Not a directory");
  expect_contains(refusal(ErrorCode::io, [&] { const DiskCache cache(folder / "file/below"); }),
                  "Not a directory");
}

// Files that another user could have put there or changed do not count.
TEST(DiskCache, ReadsOwnFilesOnly) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path());
  cache.store("x", "bytes");
  ASSERT_EQ(chmod((folder / "x").c_str(), 0620), 0);
  EXPECT_EQ(cache.load("x"), std::nullopt);
  ASSERT_EQ(chmod((folder / "x").c_str(), 0600), 0);
  EXPECT_EQ(cache.load("x"), "bytes");
  ASSERT_EQ(symlink((folder / "x").c_str(), (folder / "link").c_str()), 0);
  EXPECT_EQ(cache.load("link"), std::nullopt);
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(cache.load("fifo"), std::nullopt);
  ASSERT_EQ(mkdir((folder / "folder").c_str(), 0700), 0);
  EXPECT_EQ(cache.load("folder"), std::nullopt);
}

TEST(DiskCache, ReadOnlyFolderStillReads) {
  const TemporaryFolder folder;
  const OrdinaryUser user(folder.path());
  const DiskCache cache(folder.path());
  cache.store("x", "bytes");
  ASSERT_EQ(chmod(folder.path().c_str(), 0500), 0);
  EXPECT_EQ(cache.load("x"), "bytes");
  expect_contains(refusal(ErrorCode::io, [&] { cache.store("y", "bytes"); }), "Permission denied");
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
}

// A file system that takes a part of the file and then no more.
TEST(DiskCache, FullDiskLeavesNothing) {
  const TemporaryFolder folder;
  const DiskCache cache(folder.path());
  cache.store("x", "bytes");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = before;
  tight.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  std::string message;
  try {
    cache.store("x", std::string(100'000, 'y'));
  } catch (const Error& error) {
    message = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  expect_contains(message, "takes no file of 100000 bytes: File too large");
  EXPECT_EQ(cache.load("x"), "bytes");
  EXPECT_EQ(folder.files(), 1);
}

TEST(DiskCache, DefaultFolder) {
  {
    const Environment named("ATTN_CACHE_DIR", "/somewhere");
    EXPECT_EQ(default_cache_folder(), "/somewhere");
    const Environment off("ATTN_CACHE_DIR", "");
    EXPECT_EQ(default_cache_folder(), std::nullopt);
  }
  unsetenv("ATTN_CACHE_DIR");
  const Environment home("HOME", "/somewhere");
  const Environment none("XDG_CACHE_HOME", "");
  EXPECT_EQ(default_cache_folder(), "/somewhere/.cache/attn");
  const Environment cache("XDG_CACHE_HOME", "/cache");
  EXPECT_EQ(default_cache_folder(), "/cache/attn");
}

// Processes that store and load the same names at once: every file that is seen is whole, and one
// that somebody wrote.
TEST(DiskCache, ProcessesRace) {
  const TemporaryFolder folder;
  constexpr int kProcesses = 4, kRounds = 150;
  const Sha256::Digest key = sha256("key");
  const auto entry = [](int writer) {
    Compiled compiled;
    compiled.cubin.assign(static_cast<std::size_t>(50'000 + 5'000 * writer),
                          static_cast<char>('a' + writer));
    return compiled;
  };
  const auto work = [&](int writer) {
    std::minstd_rand random(static_cast<unsigned>(writer) + 1);
    const DiskCache cache(folder / "made/by/the/first");
    for (int round = 0; round < kRounds; ++round) {
      const std::string name = "kernel" + std::to_string(random() % 3);
      if (random() % 2 == 0) {
        cache.store(name, to_cache_entry(key, entry(writer)));
      } else if (const std::optional<std::string> bytes = cache.load(name)) {
        const std::optional<Compiled> read = from_cache_entry(key, *bytes);
        if (!read || read->cubin.empty() || read->cubin != entry(read->cubin[0] - 'a').cubin) {
          return 1;
        }
      }
    }
    return 0;
  };
  std::vector<pid_t> children;
  for (int writer = 0; writer < kProcesses; ++writer) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int result = 2;
      try {
        result = work(writer);
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
  int files = 0;
  for ([[maybe_unused]] const auto& file :
       std::filesystem::directory_iterator(folder / "made/by/the/first")) {
    ++files;
  }
  EXPECT_EQ(files, 3);
}

}  // namespace
}  // namespace attn::cuda
