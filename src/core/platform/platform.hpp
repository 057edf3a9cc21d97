// What operating systems do each in their own way: posix.cpp and windows.cpp, of which a build
// takes one. No other file of the library includes a header of the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace attn::core {

// Has these called around fork(); they stay for ever. Returns 0. Windows has neither fork() nor
// this: there no ForkHandler (core/fork_safe.hpp) is ever called.
int at_fork(void (*prepare)(), void (*parent)(), void (*child)());

// CPUs that the threads of this process may run on; at least 1.
int affinity_cpus();
// The architecture, as "x86_64"; empty where the system does not tell.
std::string machine_name();
// Of the whole machine; 0 where the system does not tell.
std::int64_t memory_bytes();

// Asks for huge pages where they fit whole, so that no more memory is touched than without.
void use_huge_pages(std::byte* p, std::size_t bytes);

// Whether this process may use the tiles of AMX, which Linux gives on request, once, for all its
// threads. Refused when an alternate signal stack is too small for them. Asks at each call.
bool permit_amx_tiles();

// Whether an AArch64 CPU has FEAT_BF16, as Linux tells; false elsewhere.
bool has_arm_bf16();

// A library that is opened at run time, and never closed: driver and compiler of CUDA keep threads
// and exit handlers.
struct SharedLibrary {
  void* handle = nullptr;
  std::string path;   // the file that was found
  std::string error;  // why nothing was
};
SharedLibrary open_library(const std::string& name);
// null when the library lacks it.
void* find_symbol(const SharedLibrary& library, const char* symbol);

// A folder of files that only this user can write, which processes share as a cache. A file is
// written under a temporary name, synced and renamed, so that any number of processes may load and
// store at once: a reader sees a whole file or none. Thread-safe.
class PrivateFolder {
 public:
  // Makes the folder (mode 0700), and those above it, where missing. Throws Error(io) saying why
  // the folder is not used: it cannot be made, is someone else's, or can be written by others. On
  // Windows, where modes do not say who writes, it always throws.
  explicit PrivateFolder(std::string folder);
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  // The bytes of a file; nothing when it is missing, unreadable, or another user could have written
  // it.
  std::optional<std::string> load(const std::string& name) const;
  // Throws Error(io), leaving neither the file nor a part of it.
  void store(const std::string& name, std::string_view bytes) const;

 private:
  std::string folder_;
  int descriptor_ = -1;  // of the folder that was checked
};

}  // namespace attn::core
