// Text files that are part of a binary.
#pragma once

#include <string_view>

namespace attn::core {

struct EmbeddedFile {
  const char* name;  // relative to the folder that was embedded
  const char* text;
};
// Files of a folder as text, in the order of their names. cmake/EmbedFiles.cmake makes it at build
// time.
struct EmbeddedFiles {
  const EmbeddedFile* begin;
  int count;
  std::string_view hash;  // SHA-256 of all names and texts, in hexadecimal digits
};

}  // namespace attn::core
