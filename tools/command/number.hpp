// Numbers of the command line.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace attn::command {

// Whether the whole text is one number that T holds; it is in `value` then.
template <class T>
bool reads_as(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace attn::command
