#include "cuda/jit/disk_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <system_error>
#include <utility>

#include "attn/error.hpp"

namespace attn::cuda {
namespace {

// Far above any kernel: a limit on what a damaged folder can make a process read.
constexpr off_t kMaxFileBytes = off_t{64} << 20;

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::io, message); }

bool written_by_others(const struct stat& status) {
  return (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

// Makes folders as mkdir -p does. Errors show when the folder is opened.
void make_folders(const std::string& folder) {
  for (std::size_t slash = folder.find('/', 1);; slash = folder.find('/', slash + 1)) {
    mkdir(folder.substr(0, slash).c_str(), 0700);
    if (slash == std::string::npos) return;
  }
}

// A file descriptor, closed at the end.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  // 0 or errno: some file systems tell of a full disk here.
  int close() { return ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno; }

 private:
  int descriptor_;
};

// Writes all bytes; returns 0 or errno.
int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

// A name that no other process or thread uses, and that none which was killed has left behind.
std::string temporary_name(const std::string& name) {
  static std::atomic<unsigned> count{0};
  return fmt::format(".{}.{}.{}.{:x}", name, getpid(), count++, std::random_device{}());
}

}  // namespace

DiskCache::DiskCache(std::string folder) : folder_(std::move(folder)) {
  const auto open_folder = [&] {
    return ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  };
  descriptor_ = open_folder();
  if (descriptor_ < 0 && errno == ENOENT) {
    make_folders(folder_);
    descriptor_ = open_folder();
  }
  if (descriptor_ < 0) {
    refuse(fmt::format("cache folder {} cannot be made or opened: {}", folder_, reason(errno)));
  }
  struct stat status {};
  const bool known = fstat(descriptor_, &status) == 0;
  std::string wrong;
  if (!known) {
    wrong = reason(errno);
  } else if (status.st_uid != geteuid()) {
    wrong =
        fmt::format("it belongs to user {}, this process is of user {}", status.st_uid, geteuid());
  } else if (written_by_others(status)) {
    wrong = fmt::format("others can write it (mode {:04o}); accepted are modes as 0700",
                        status.st_mode & 07777);
  }
  if (!wrong.empty()) {
    ::close(descriptor_);
    refuse(fmt::format("cache folder {} is not used: {}", folder_, wrong));
  }
}

DiskCache::~DiskCache() { ::close(descriptor_); }

std::optional<std::string> DiskCache::load(const std::string& name) const {
  const File file(
      openat(descriptor_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != geteuid() || written_by_others(status) || status.st_size > kMaxFileBytes) {
    return std::nullopt;
  }
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

void DiskCache::store(const std::string& name, std::string_view bytes) const {
  const std::string temporary = temporary_name(name);
  File file(openat(descriptor_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    refuse(fmt::format("cache folder {} takes no file: {}", folder_, reason(errno)));
  }
  int error = write_all(file.get(), bytes);
  if (error == 0 && fsync(file.get()) != 0) error = errno;
  const int closed = file.close();
  if (error == 0) error = closed;
  if (error == 0 && renameat(descriptor_, temporary.c_str(), descriptor_, name.c_str()) != 0) {
    error = errno;
  }
  if (error == 0) return;
  unlinkat(descriptor_, temporary.c_str(), 0);
  refuse(fmt::format("cache folder {} takes no file of {} bytes: {}", folder_, bytes.size(),
                     reason(error)));
}

std::optional<std::string> default_cache_folder() {
  if (const char* named = std::getenv("ATTN_CACHE_DIR"); named != nullptr) {
    if (named[0] == '\0') return std::nullopt;
    return named;
  }
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') {
    return std::string(cache) + "/attn";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::string(home) + "/.cache/attn";
  }
  return std::nullopt;
}

}  // namespace attn::cuda
