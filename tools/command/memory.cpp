#include "command/memory.hpp"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace attn::command {
namespace {

// A line "VmRSS:     2080 kB" of /proc/self/status, in bytes.
std::optional<std::int64_t> read_status(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kib = 0;
    if (word == field + ":" && status >> kib) return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> peak_memory(const std::function<void()>& call) {
  ::malloc_trim(0);
  std::ofstream clear("/proc/self/clear_refs");
  const bool reset = (clear << "5" << std::flush).good();  // VmHWM falls to VmRSS (proc(5))
  const std::optional<std::int64_t> before = read_status("VmRSS");
  call();
  const std::optional<std::int64_t> peak = read_status("VmHWM");
  if (!reset || !before || !peak) return std::nullopt;
  return std::max<std::int64_t>(*peak - *before, 0);
}

}  // namespace attn::command
