// What a user wrote, within a message.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "attn/problem.hpp"

namespace attn::core {

// The text as far as a message shows it: of a longer one the first `most` bytes and its length, so
// that a sentence stays one whatever it is about.
inline std::string echo(std::string_view text, std::size_t most = 60) {
  if (text.size() <= most) return std::string(text);
  return fmt::format("{}... ({} bytes)", text.substr(0, most), text.size());
}

// The path of a file, which may be longer than other texts.
inline std::string echo_path(std::string_view path) { return echo(path, 300); }

// The text of a problem, whose mask and score may be long.
inline std::string echo(const Problem& problem) { return echo(to_string(problem), 300); }

}  // namespace attn::core
