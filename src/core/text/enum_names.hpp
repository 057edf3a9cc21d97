// Names of enumerators: one table an enumeration, read in both directions.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "attn/error.hpp"
#include "core/text/echo.hpp"

namespace attn::core {

template <class Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

template <class Enum, std::size_t n>
constexpr std::string_view name_of(const EnumName<Enum> (&table)[n], Enum value) noexcept {
  for (const EnumName<Enum>& row : table) {
    if (row.value == value) return row.name;
  }
  return "unknown";
}

// `what` names the argument in the refusal of an unknown text.
template <class Enum, std::size_t n>
Enum parse_name(const EnumName<Enum> (&table)[n], std::string_view what, std::string_view text) {
  for (const EnumName<Enum>& row : table) {
    if (row.name == text) return row.value;
  }
  std::string accepted;
  for (const EnumName<Enum>& row : table) {
    if (!accepted.empty()) accepted += ", ";
    accepted += row.name;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is '{}'; accepted are {}", what, echo(text), accepted));
}

}  // namespace attn::core
