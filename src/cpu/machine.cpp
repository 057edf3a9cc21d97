// What the operating system tells of this machine's CPU, caches and memory.
#include "attn/machine.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "core/platform/platform.hpp"
#include "cpu/available_cpus.hpp"

namespace attn {
namespace {

std::string cpu_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  const std::string architecture = core::machine_name();
  return architecture.empty() ? "unknown" : architecture;
}

// "48K", "32M" or plain bytes.
std::int64_t parse_size(const std::string& text) {
  std::int64_t value = 0;
  for (const char c : text) {
    if (c == 'K') return value << 10;
    if (c == 'M') return value << 20;
    if (c == 'G') return value << 30;
    if (c < '0' || c > '9') break;
    value = value * 10 + (c - '0');
  }
  return value;
}

// Data or unified cache of the first CPU; 0 when the kernel does not tell.
std::int64_t cache_bytes(int level) {
  for (int index = 0;; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    std::ifstream level_file(folder + "level"), type_file(folder + "type"),
        size_file(folder + "size");
    int found_level = 0;
    std::string type, size;
    if (!(level_file >> found_level && type_file >> type && size_file >> size)) return 0;
    if (found_level == level && type != "Instruction") return parse_size(size);
  }
}

}  // namespace

Machine describe_machine() {
  return {.cpu = cpu_name(),
          .cpus = cpu::available_cpus(),
          .l1d_bytes = cache_bytes(1),
          .l2_bytes = cache_bytes(2),
          .l3_bytes = cache_bytes(3),
          .memory_bytes = core::memory_bytes()};
}

}  // namespace attn
