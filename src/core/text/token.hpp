// A token of the text form of problems, how what follows its name is read, and the shapes that
// tokens say (docs/descriptors.md).
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "attn/tensor.hpp"

namespace attn::core {

// name: the letters that say what it is; value: what follows them. Views of the descriptor's text.
struct Token {
  std::string_view descriptor, text, name, value;

  // Throws Error(invalid_argument) that names the token and what is accepted.
  [[noreturn]] void refuse(std::string_view accepted) const;
  void take_no_value() const;  // refuses one

  // The number that a part of the value is; refuses what is none, infinities and NaN.
  template <class T>
  T number(std::string_view part, std::string_view accepted) const {
    T result{};
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), result);
    if (error != std::errc{} || end != part.data() + part.size()) refuse(accepted);
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(result)) refuse(accepted);
    }
    return result;
  }
  template <class T>
  T number(std::string_view accepted) const {
    return number<T>(value, accepted);
  }
  std::int64_t size() const;  // the value: a whole number, 0 or more
  // {2, 8, 64} of "2x8x64"
  std::vector<std::int64_t> shape(std::string_view part) const;
  std::string_view parenthesised(std::string_view accepted) const;  // what is between ( and )
};

std::vector<std::string_view> split(std::string_view text, char separator);

// A row-major tensor without data: what a descriptor knows of a buffer.
Tensor shape_only(DType dtype, const std::vector<std::int64_t>& shape);
std::vector<std::int64_t> shape_of(const Tensor& tensor);
// "2x8x64" for {2, 8, 64}
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace attn::core
