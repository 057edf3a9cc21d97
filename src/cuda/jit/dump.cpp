#include "cuda/jit/dump.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "attn/error.hpp"
#include "core/text/echo.hpp"

namespace attn::cuda {

Dump dump_from_environment() {
  Dump dump;
  const char* const words = std::getenv("ATTN_DUMP");
  std::string_view rest = words != nullptr ? words : "";
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    if (word == "source") {
      dump.source = true;
    } else if (word == "ptx") {
      dump.ptx = true;
    } else if (word == "cubin") {
      dump.cubin = true;
    } else if (word == "report") {
      dump.report = true;
    } else {
      dump.unknown = word;
    }
  }
  const char* const folder = std::getenv("ATTN_DUMP_DIR");
  dump.folder = folder != nullptr && folder[0] != '\0' ? folder : "attn_dump";
  return dump;
}

void write_dump(const Dump& dump, const std::string& stem, const Source& source,
                const Compiled& compiled) {
  std::error_code error;  // a folder that could not be made shows in the files
  std::filesystem::create_directories(dump.folder, error);
  const auto write = [&](bool wanted, std::string_view suffix, std::string_view bytes) {
    if (!wanted) return;
    const std::string path = fmt::format("{}/{}.{}", dump.folder, stem, suffix);
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file)
      throw Error(ErrorCode::io, fmt::format("dump {} cannot be written", core::echo_path(path)));
  };
  write(dump.source, "cu", source.text);
  write(dump.ptx, "ptx", compiled.ptx);
  write(dump.cubin, "cubin", {compiled.cubin.data(), compiled.cubin.size()});
  write(dump.report, "txt",
        fmt::format("{} in {}\n{}\n", source.entry, source.name, to_string(compiled.report)));
}

}  // namespace attn::cuda
