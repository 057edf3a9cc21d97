// Reading whole regular files piece by piece, and what messages about files need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace attn::io {

// Text of a file or of the command line, made safe to print: control characters and bytes outside
// ASCII as \xNN, cut after so many characters.
std::string printable(std::string_view text, std::size_t max_characters = 120);

// Throws Error(io) "<path>: <message>".
[[noreturn]] void fail(const std::filesystem::path& path, std::string_view message);

// What an errno value means. Thread-safe.
std::string reason(int error);

class InputFile {
 public:
  // Throws Error(io) when path is not a regular file that can be read.
  explicit InputFile(std::filesystem::path path);
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::filesystem::path& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }
  // Fills `bytes` from `offset` on; thread-safe. Throws Error(io) when the file ends before.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace attn::io
