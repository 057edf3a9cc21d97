// A folder for a test, and who is allowed to write it.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace attn::cuda {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "attn_cache_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() {
    chmod(path_.c_str(), 0700);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  int files() const {
    int count = 0;
    for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }
  // The only one.
  std::string file() const {
    EXPECT_EQ(files(), 1);
    return std::filesystem::directory_iterator(path_)->path().string();
  }

 private:
  std::string path_;
};

// The rights of an ordinary user while in scope, where the tests run as root, for whom no folder is
// read-only.
class OrdinaryUser {
 public:
  explicit OrdinaryUser(const std::string& owned_folder) {
    if (geteuid() != 0) return;
    EXPECT_EQ(chown(owned_folder.c_str(), kNobody, kNobody), 0);
    was_root_ = seteuid(kNobody) == 0;
    EXPECT_TRUE(was_root_);
  }
  ~OrdinaryUser() {
    if (was_root_) {
      EXPECT_EQ(seteuid(0), 0);
    }
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  bool was_root_ = false;
};

// An environment variable while in scope.
class Environment {
 public:
  Environment(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* old = std::getenv(name_.c_str())) old_ = old;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    if (old_) {
      setenv(name_.c_str(), old_->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::string name_;
  std::optional<std::string> old_;
};

}  // namespace attn::cuda
