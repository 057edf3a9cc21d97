#include "io/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "io/file.hpp"

namespace attn::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_to_write(const fs::path& path, std::string_view why) {
  fail(path, fmt::format("cannot be written: {}", why));
}

// What is at `path`, links followed; nothing where no file is.
std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status;
  if (errno != ENOENT) fail_to_write(path, reason(errno));
  return std::nullopt;
}

// The path at which a chain of symbolic links ends, whether or not a file is there.
fs::path follow_links(const fs::path& path) {
  constexpr int kMaxLinks = 40;  // as Linux itself follows
  fs::path target = path;
  for (int links = 0; fs::is_symlink(fs::symlink_status(target)); ++links) {
    if (links == kMaxLinks) fail_to_write(path, reason(ELOOP));
    target = target.parent_path() / fs::read_symlink(target);
  }
  return target;
}

bool is_same_file(const struct stat& status, int descriptor) {
  struct stat other {};
  return ::fstat(descriptor, &other) == 0 && other.st_dev == status.st_dev &&
         other.st_ino == status.st_ino;
}

// Throws unless what is at `path` may be written.
void check_existing(const fs::path& path, const struct stat& status) {
  if (S_ISDIR(status.st_mode)) fail_to_write(path, "it is a directory");
  constexpr mode_t kAnyWrite = S_IWUSR | S_IWGRP | S_IWOTH;
  // The superuser may write what has no permission for it; its owner meant it to stay.
  if ((status.st_mode & kAnyWrite) == 0) fail_to_write(path, "it is read-only");
  if (::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
    fail_to_write(path, reason(errno));
  }
  if (!S_ISREG(status.st_mode)) return;
  if (is_same_file(status, STDOUT_FILENO) || is_same_file(status, STDERR_FILENO)) {
    fail_to_write(path, "standard output or standard error goes there");
  }
}

}  // namespace

OutputFile::OutputFile(fs::path path) : path_(std::move(path)) {
  if (path_ == "-") fail_to_write(path_, "it is no path; accepted for a file of this name is ./-");
  const std::optional<struct stat> status = status_of(path_);
  if (status) check_existing(path_, *status);
  if (status && !S_ISREG(status->st_mode)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) fail_to_write(path_, reason(errno));
    return;
  }
  target_ = follow_links(path_);
  open_temporary();
  if (!status) return;
  // A process that may not give files away writes its own.
  [[maybe_unused]] const int owner = ::fchown(descriptor_, status->st_uid, status->st_gid);
  constexpr mode_t kPermissions = 07777;
  if (::fchmod(descriptor_, status->st_mode & kPermissions) != 0) {
    const int error = errno;
    close();
    fail_to_write(path_, reason(error));
  }
}

OutputFile::~OutputFile() { close(); }

void OutputFile::check(const fs::path& path) {
  const std::optional<struct stat> status = status_of(path);
  if (status && !S_ISREG(status->st_mode)) return check_existing(path, *status);
  const OutputFile trial(path);
}

bool OutputFile::same(const fs::path& a, const fs::path& b) {
  const std::optional<struct stat> status = status_of(a), other = status_of(b);
  if (status.has_value() != other.has_value()) return false;
  if (!status)
    return fs::weakly_canonical(follow_links(a)) == fs::weakly_canonical(follow_links(b));
  return S_ISREG(status->st_mode) && status->st_dev == other->st_dev &&
         status->st_ino == other->st_ino;
}

void OutputFile::open_temporary() {
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = target_;
    temporary_ += fmt::format(".{}.{}.tmp", ::getpid(), attempt);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) fail_to_write(path_, reason(errno));
  }
}

// Closes a file, and removes it where it was not committed.
void OutputFile::close() {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to_write(path_, reason(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void OutputFile::commit() {
  if (!temporary_.empty()) {
    if (::fsync(descriptor_) != 0) fail_to_write(path_, reason(errno));
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_to_write(path_, reason(errno));
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_to_write(path_, reason(errno));
}

}  // namespace attn::io
