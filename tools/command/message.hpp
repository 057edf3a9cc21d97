// Text for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace attn::command {

// Writes the text as it is. Where standard error is closed or full there is nobody left to tell, so
// that nothing is thrown, as fmt::print would: it is called in destructors and for errors.
void tell(std::string_view text) noexcept;

// A path as messages of success show it: whole, with bytes that a terminal would obey as \xNN.
std::string shown(std::string_view path);

}  // namespace attn::command
