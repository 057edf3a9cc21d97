// Text to standard error.
#pragma once

#include <string_view>

namespace attn::command {

// Writes the text as it is. Where standard error is closed or full there is nobody left to tell, so
// that nothing is thrown, as fmt::print would: it is called in destructors and for errors.
void tell(std::string_view text) noexcept;

}  // namespace attn::command
