// A regular file in memory, for readers that take a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "fuzz.hpp"

namespace attn::fuzz {

class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) {
    require(descriptor_ >= 0, "memfd_create failed");
    require(write(descriptor_, data, size) == static_cast<ssize_t>(size), "write failed");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(descriptor_); }

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_ = memfd_create("fuzz", 0);
};

}  // namespace attn::fuzz
