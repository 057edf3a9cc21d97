#include "command/message.hpp"

#include <cstdio>

#include "io/file.hpp"

namespace attn::command {

void tell(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string shown(std::string_view path) { return io::printable(path, path.size() * 4); }

}  // namespace attn::command
