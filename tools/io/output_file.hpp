// Writing files that appear complete or not at all, and to devices, pipes and FIFOs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace attn::io {

// What is at a path decides how it is written; symbolic links are followed and stay links.
//   nothing, a regular file   A temporary file beside it, which commit() flushes to the disk and
//                             renames to it. Without commit() what was there stays. The mode is
//                             kept, and the owner where the process may give files away.
//   a device, a FIFO          In place, as the bytes come: /dev/null stays what it is. Opening a
//                             FIFO waits for its reader.
// Refused, whoever runs the process: the path -, which elsewhere means standard output; a folder, a
// file without a permission to write or that the process may not write, and the file that standard
// output or standard error goes to.
class OutputFile {
 public:
  // Throws Error(io) for what is refused and for what the system does not let be written.
  explicit OutputFile(std::filesystem::path path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  // Throws what the constructor would; changes nothing and waits for nothing. Called before long
  // work, so that a path that cannot be written is refused first.
  static void check(const std::filesystem::path& path);
  // Whether both name one regular file, there already or not: through links, or by another path.
  static bool same(const std::filesystem::path& a, const std::filesystem::path& b);

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  void open_temporary();
  void close();

  std::filesystem::path path_;                // as given
  std::filesystem::path target_, temporary_;  // temporary_ is empty when written in place
  int descriptor_ = -1;
};

}  // namespace attn::io
