#include "cuda/kernel_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "attn/error.hpp"
#include "core/text/echo.hpp"

namespace attn::cuda {

KernelName split_kernel_name(std::string_view name) {
  const std::size_t slash = std::min(name.find('/'), name.size());
  return {name.substr(0, slash), name.substr(std::min(slash + 1, name.size()))};
}

int number_after(std::string_view part, std::string_view letters) {
  int value = -1;
  if (!part.starts_with(letters)) return -1;
  part.remove_prefix(letters.size());
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  return error == std::errc{} && end == part.data() + part.size() ? value : -1;
}

void set_parts(std::string_view kernel, std::string_view text, std::string_view accepted,
               const std::function<bool(std::string_view)>& set) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('_', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (!set(part)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("kernel is '{}/{}': '{}' is no part of a tile shape; accepted are {}",
                              kernel, core::echo(text), core::echo(part), accepted));
    }
    begin = end + 1;
  }
}

}  // namespace attn::cuda
