// fmt, compiled once into the library where none is found or ATTN_FMT_COMPILED_IN is on. Other
// files see its declarations alone; this one sees its definitions, and calls each function that
// they need, compiled so that none is inlined (CMakeLists.txt). One that is missing is an undefined
// symbol when the command is linked.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace attn {

std::string fmt_functions(std::FILE* file, fmt::string_view text, fmt::format_args arguments) {
  fmt::vprint(text, arguments);
  fmt::vprint(file, text, arguments);
  return fmt::vformat(text, arguments) + fmt::format("{:L}{:L}{}", 1, 0.5, 0.5F);
}

}  // namespace attn
