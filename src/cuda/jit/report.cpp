// Registers, spills and warnings of a kernel, read from the log of NVRTC's assembler.
#include <fmt/format.h>

#include <charconv>

#include "cuda/jit/compile.hpp"

namespace attn::cuda {
namespace {

// The number in front of `unit`: 24 of "... 24 bytes spill stores ..."; 0 where there is none.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

bool contains(std::string_view line, std::string_view word) {
  return line.find(word) != std::string_view::npos;
}

bool is_warning(std::string_view line) {
  // The assembler calls serialised wgmma "info ... Potential Performance Loss".
  return contains(line, "warning") || contains(line, "Performance Loss");
}

}  // namespace

Report parse_log(std::string_view log, std::string_view entry) {
  Report report;
  // Numbers belong to the function that was named last.
  bool ours = false;
  const std::string of_entry = fmt::format("function '{}'", entry);
  const std::string for_entry = fmt::format("properties for {}", entry);
  while (!log.empty()) {
    const std::size_t end = log.find('\n');
    std::string_view line = log.substr(0, end);
    log.remove_prefix(end == std::string_view::npos ? log.size() : end + 1);
    if (contains(line, "Compiling entry")) ours = contains(line, of_entry);
    if (contains(line, "Function properties for")) ours = line.ends_with(for_entry);
    if (is_warning(line) && !line.starts_with("Remark")) report.warnings.emplace_back(line);
    if (!ours || is_warning(line)) continue;
    if (contains(line, " bytes stack frame")) {
      report.local_bytes = number_before(line, " bytes stack frame");
      report.spill_store_bytes = number_before(line, " bytes spill stores");
      report.spill_load_bytes = number_before(line, " bytes spill loads");
    }
    if (contains(line, " registers")) {
      report.registers = number_before(line, " registers");
      report.shared_bytes = number_before(line, " bytes smem");
    }
  }
  return report;
}

std::string to_string(const Report& report) {
  std::string text = fmt::format(
      "{} registers, {} bytes of spill stores, {} of spill loads, {} of local memory, {} of static "
      "shared memory, {} in {:.0f} ms",
      report.registers, report.spill_store_bytes, report.spill_load_bytes, report.local_bytes,
      report.shared_bytes, report.from_cache ? "read from the cache" : "compiled",
      report.seconds * 1e3);
  for (const std::string& warning : report.warnings) text += "\n" + warning;
  return text;
}

}  // namespace attn::cuda
