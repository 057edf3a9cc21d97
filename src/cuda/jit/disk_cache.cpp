#include "cuda/jit/disk_cache.hpp"

#include <cstdlib>

namespace attn::cuda {

std::optional<std::string> default_cache_folder() {
  if (const char* named = std::getenv("ATTN_CACHE_DIR"); named != nullptr) {
    if (named[0] == '\0') return std::nullopt;
    return named;
  }
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') {
    return std::string(cache) + "/attn";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::string(home) + "/.cache/attn";
  }
  return std::nullopt;
}

}  // namespace attn::cuda
