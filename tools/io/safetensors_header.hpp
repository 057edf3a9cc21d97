// The JSON header of a safetensors file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.hpp"

namespace attn::io {

struct SafetensorsType {
  std::string_view name;
  std::size_t bytes;
  bool readable;  // dtype is valid
  DType dtype;
};
// nullptr when the format has no such type. Types narrower than a byte are not known here.
const SafetensorsType* find_safetensors_type(std::string_view name) noexcept;
std::string_view safetensors_name(DType dtype) noexcept;

// Parses without building a document: memory in proportion to the result, no recursion. Checks
// everything that the header alone decides; entries come in order of their offsets. On refusal
// `entries` is empty and `error` one sentence.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::string error;
};
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

}  // namespace attn::io
