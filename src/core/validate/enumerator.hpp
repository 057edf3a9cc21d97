// Refusals of numbers that are no enumerators, as a cast or a file may give them.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "core/validate/argument_check.hpp"

namespace attn::core {

// Throws Error(invalid_argument) unless name(value) knows the value: "backend is 77; accepted are
// the enumerators of Backend".
template <class Enum>
void check_enumerator(const ArgumentCheck& check, std::string_view argument, Enum value,
                      std::string_view type) {
  constexpr std::string_view kUnknown = "unknown";  // name() of all other values
  if (name(value) != kUnknown) return;
  check.refuse(fmt::format("{} is {}; accepted are the enumerators of {}", argument,
                           static_cast<int>(value), type));
}

}  // namespace attn::core
