// What OutputFile does to what is at its path.
#include "io/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <future>

#include "io_test_util.hpp"

namespace attn::io {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public IoTest {
 protected:
  static void write(const fs::path& path, std::string_view text) {
    OutputFile::check(path);
    OutputFile file(path);
    file.write(text);
    file.commit();
  }
  static mode_t mode(const fs::path& path) {
    struct stat status {};
    EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
    return status.st_mode;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path("")), fs::directory_iterator()));
  }
  void expect_refused(const fs::path& path, std::string_view why) const {
    SCOPED_TRACE(path);
    const std::size_t before = files();
    expect_error(ErrorCode::io, {path.native(), "cannot be written", why},
                 [&] { OutputFile::check(path); });
    expect_error(ErrorCode::io, {path.native(), "cannot be written", why},
                 [&] { const OutputFile file(path); });
    EXPECT_EQ(files(), before);
  }
};

TEST_F(OutputFileTest, NewFilesHaveTheModeOfTheProcess) {
  const mode_t mask = ::umask(027);
  write(path("new"), "text");
  ::umask(mask);
  EXPECT_EQ(mode(path("new")), mode_t{S_IFREG | 0640});
  EXPECT_EQ(load(path("new")), "text");
}

TEST_F(OutputFileTest, ModeIsKept) {
  for (const mode_t wanted : {0600, 0644, 0664, 0755, 0200}) {
    const auto file = store("file", "before");
    ASSERT_EQ(::chmod(file.c_str(), wanted), 0);
    write(file, "after");
    EXPECT_EQ(mode(file), S_IFREG | wanted);
    ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
    EXPECT_EQ(load(file), "after");
    fs::remove(file);
  }
}

TEST_F(OutputFileTest, OwnerIsKept) {
  if (::geteuid() != 0) GTEST_SKIP() << "only the superuser gives files away";
  const auto file = store("file", "before");
  ASSERT_EQ(::chown(file.c_str(), 12345, 23456), 0);
  write(file, "after");
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 12345U);
  EXPECT_EQ(status.st_gid, 23456U);
}

TEST_F(OutputFileTest, CheckChangesNothing) {
  OutputFile::check(path("absent"));
  EXPECT_EQ(files(), 0U);
  const auto file = store("file", "before");
  OutputFile::check(file);
  EXPECT_EQ(load(file), "before");
  { OutputFile(file).write("after"); }  // not committed
  EXPECT_EQ(load(file), "before");
  EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFileTest, ReadOnlyFilesAreRefused) {
  const auto file = store("file", "before");
  ASSERT_EQ(::chmod(file.c_str(), 0444), 0);
  expect_refused(file, "read-only");
  fs::create_symlink("file", path("link"));
  expect_refused(path("link"), "read-only");
  EXPECT_EQ(load(file), "before");
}

TEST_F(OutputFileTest, LinksStayLinks) {
  fs::create_directory(path("folder"));
  store("folder/target", "before");
  fs::create_symlink("folder/target", path("relative"));
  fs::create_symlink(path("relative"), path("chain"));
  fs::create_symlink("../absent", path("folder/dangling"));
  write(path("chain"), "after");
  EXPECT_EQ(load(path("folder/target")), "after");
  write(path("folder/dangling"), "new");
  EXPECT_EQ(load(path("absent")), "new");
  for (const char* link : {"relative", "chain", "folder/dangling"}) {
    EXPECT_TRUE(S_ISLNK(mode(path(link)))) << link;
  }
  EXPECT_TRUE(S_ISREG(mode(path("folder/target"))));
}

TEST_F(OutputFileTest, LinksThatLeadNowhere) {
  fs::create_symlink("b", path("a"));
  fs::create_symlink("a", path("b"));
  expect_refused(path("a"), "symbolic links");
  fs::create_symlink("no/such/folder", path("c"));
  expect_refused(path("c"), "No such file");
  fs::create_symlink(".", path("d"));
  expect_refused(path("d"), "directory");
}

TEST_F(OutputFileTest, FifosAreWrittenInPlace) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  OutputFile::check(path("fifo"));  // does not wait for a reader
  auto read = std::async(std::launch::async, [&] { return load(path("fifo")); });
  write(path("fifo"), "through");
  EXPECT_EQ(read.get(), "through");
  EXPECT_TRUE(S_ISFIFO(mode(path("fifo"))));
  EXPECT_EQ(files(), 1U);
}

// A node of our own with the numbers of /dev/null: the machine's is left alone.
TEST_F(OutputFileTest, DevicesAreWrittenInPlace) {
  constexpr unsigned kMemoryDevices = 1, kNull = 3, kFull = 7;
  const auto make = [&](const char* name, unsigned minor) {
    return ::mknod(path(name).c_str(), S_IFCHR | 0666, makedev(kMemoryDevices, minor)) == 0 &&
           ::close(::open(path(name).c_str(), O_WRONLY)) == 0;
  };
  if (!make("null", kNull) || !make("full", kFull)) {
    GTEST_SKIP() << "device nodes cannot be made or opened here";
  }
  write(path("null"), "text");
  fs::create_symlink("null", path("link"));
  write(path("link"), "text");
  EXPECT_TRUE(S_ISCHR(mode(path("null"))));
  EXPECT_TRUE(S_ISLNK(mode(path("link"))));
  expect_error(ErrorCode::io, {"full", "No space left"}, [&] { write(path("full"), "text"); });
  EXPECT_TRUE(S_ISCHR(mode(path("full"))));
  EXPECT_EQ(files(), 3U);
}

}  // namespace
}  // namespace attn::io
