// Linux and other systems with POSIX.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "attn/error.hpp"
#include "core/platform/platform.hpp"
#include "core/text/echo.hpp"

#if defined(__linux__)
#include <link.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#endif

namespace attn::core {
namespace {

// Far above any kernel: a limit on what a damaged folder can make a process read.
constexpr off_t kMaxFileBytes = off_t{64} << 20;

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void refuse(const std::string& folder, const std::string& why) {
  throw Error(ErrorCode::io, fmt::format("cache folder {} {}", echo_path(folder), why));
}

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

int at_fork(void (*prepare)(), void (*parent)(), void (*child)()) {
  return pthread_atfork(prepare, parent, child);
}

int affinity_cpus() {
#if defined(__linux__)
  // The kernel refuses masks smaller than its own: grow until it accepts.
  for (std::size_t sets = 1; sets <= 64; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    if (sched_getaffinity(0, sets * sizeof(cpu_set_t), mask.data()) == 0) {
      return std::max(1, CPU_COUNT_S(sets * sizeof(cpu_set_t), mask.data()));
    }
  }
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::string machine_name() {
  utsname names{};
  return uname(&names) == 0 ? names.machine : "";
}

std::int64_t memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? std::int64_t{pages} * page_bytes : 0;
}

void use_huge_pages([[maybe_unused]] std::byte* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(p) % kHugePage) % kHugePage;
  if (bytes < before + kHugePage) return;
  const std::size_t whole = (bytes - before) / kHugePage * kHugePage;
  // This is only advice: a kernel without huge pages refuses it, and nothing is lost.
  static_cast<void>(madvise(p + before, whole, MADV_HUGEPAGE));
#endif
}

bool permit_amx_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // its bit in the saved state
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_arm_bf16() {
#if defined(__linux__) && defined(__aarch64__)
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#else
  return false;
#endif
}

SharedLibrary open_library(const std::string& name) {
  SharedLibrary library;
  library.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    const char* error = dlerror();
    library.error = error != nullptr ? error : "dlopen gave no reason";
    return library;
  }
  library.path = name;
#if defined(__linux__)
  link_map* map = nullptr;
  if (dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0') {
    library.path = map->l_name;
  }
#endif
  return library;
}

void* find_symbol(const SharedLibrary& library, const char* symbol) {
  return dlsym(library.handle, symbol);
}

PrivateFolder::PrivateFolder(std::string folder) : folder_(std::move(folder)) {
  const auto open_folder = [&] {
    return ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  };
  descriptor_ = open_folder();
  if (descriptor_ < 0 && errno == ENOENT) {
    make_folders(folder_);
    descriptor_ = open_folder();
  }
  if (descriptor_ < 0) {
    refuse(folder_, "cannot be made or opened: " + reason(errno));
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
    refuse(folder_, "is not used: " + wrong);
  }
}

PrivateFolder::~PrivateFolder() { ::close(descriptor_); }

std::optional<std::string> PrivateFolder::load(const std::string& name) const {
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

void PrivateFolder::store(const std::string& name, std::string_view bytes) const {
  const std::string temporary = temporary_name(name);
  File file(openat(descriptor_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    refuse(folder_, "takes no file: " + reason(errno));
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
  refuse(folder_, fmt::format("takes no file of {} bytes: {}", bytes.size(), reason(error)));
}

}  // namespace attn::core
