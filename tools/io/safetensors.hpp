// The safetensors format: u64 little-endian length N, N bytes that describe the tensors, then their
// bytes, row-major and little-endian, without gaps. The N bytes are a JSON object, which begins
// with the first of them, and spaces (0x20) after it; nothing else.
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/array.hpp"
#include "io/file.hpp"

namespace attn::io {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as in the file: "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, counted from the end of the header
};

// An open file whose header has been checked: every shape, dtype and pair of offsets agree, the
// tensors cover the data without gap or overlap, and nothing is named twice. Reading uses memory in
// proportion to the header (at most 16 MiB) and to the tensor that is read. Throws Error(io).
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<SafetensorsEntry>& entries() const noexcept { return entries_; }  // by name
  bool contains(std::string_view name) const noexcept;
  // dtype F64, F32, BF16, F16, I64, I32 or U8, rank 1 to kMaxRank. Thread-safe.
  Array read(std::string_view name) const;

 private:
  const SafetensorsEntry* find(std::string_view name) const noexcept;

  InputFile file_;
  std::uint64_t data_ = 0;  // where the tensors' bytes begin
  std::vector<SafetensorsEntry> entries_;
};

// Host tensors of any strides, in this order in the file. Names are unique and not
// "__metadata__". Throws Error(invalid_argument | io).
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors);

}  // namespace attn::io
