#include "command/message.hpp"

#include <cstdio>

namespace attn::command {

void tell(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace attn::command
