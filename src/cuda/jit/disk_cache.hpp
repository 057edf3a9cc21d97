// Compiled kernels in a folder that processes share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attn::cuda {

// A folder of files that only this user can write. A file is written under a temporary name, synced
// and renamed, so that any number of processes may load and store at once: a reader sees a whole
// file or none. Thread-safe.
class DiskCache {
 public:
  // Makes the folder (mode 0700), and those above it, where missing. Throws Error(io) saying why
  // the folder is not used: it cannot be made, is someone else's, or can be written by others.
  explicit DiskCache(std::string folder);
  ~DiskCache();
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  // The bytes of a file; nothing when it is missing, unreadable, or another user could have written
  // it.
  std::optional<std::string> load(const std::string& name) const;
  // Throws Error(io), leaving neither the file nor a part of it.
  void store(const std::string& name, std::string_view bytes) const;

 private:
  std::string folder_;
  int descriptor_ = -1;  // of the folder that was checked
};

// ATTN_CACHE_DIR, else attn in XDG_CACHE_HOME or in .cache of the home folder. Nothing where
// ATTN_CACHE_DIR is empty, which turns the cache off, or where there is no home.
std::optional<std::string> default_cache_folder();

}  // namespace attn::cuda
