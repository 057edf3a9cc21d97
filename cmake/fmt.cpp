// fmt, compiled once into the library where ATTN_FMT_COMPILED_IN is on. Debian has fmt as headers
// and as a shared library, and no archive. Other files see its declarations alone; this one sees
// its definitions, and calls each function that they need, compiled so that none is inlined
// (CMakeLists.txt). One that is missing is an undefined symbol when the command is linked.
#define FMT_HEADER_ONLY
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <string>

namespace attn {

std::string fmt_functions(std::FILE* file, fmt::string_view text, fmt::format_args arguments,
                          const std::tm& time) {
  fmt::vprint(text, arguments);
  fmt::vprint(file, text, arguments);
  return fmt::vformat(text, arguments) + fmt::format("{:L}{:L}{}{:%F}", 1, 0.5, 0.5F, time);
}

}  // namespace attn
