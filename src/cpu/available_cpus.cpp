#include "cpu/available_cpus.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "core/platform/platform.hpp"

namespace attn::cpu {
namespace {

// CPUs' worth of time of a version 2 control group: cpu.max holds "quota period" or "max period".
std::optional<double> quota_v2(const std::filesystem::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

std::optional<double> quota_v1(const std::filesystem::path& group) {
  std::ifstream quota_file(group / "cpu.cfs_quota_us"), period_file(group / "cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) {
    return quota / period;
  }
  return std::nullopt;
}

// The tightest limit of this process's control group and the groups above it.
std::optional<double> quota_cpus() {
  const std::filesystem::path root = "/sys/fs/cgroup";
  std::optional<double> tightest = quota_v1(root / "cpu");
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (!line.starts_with("0::/")) continue;  // version 2
    std::filesystem::path group = root / line.substr(4);
    for (;; group = group.parent_path()) {
      const std::optional<double> quota = quota_v2(group);
      if (quota && (!tightest || *quota < *tightest)) tightest = quota;
      if (group == root || !group.has_relative_path()) break;
    }
  }
  return tightest;
}

}  // namespace

int available_cpus() {
  int cpus = core::affinity_cpus();
  if (const std::optional<double> quota = quota_cpus()) {
    cpus = std::min(cpus, std::max(1, static_cast<int>(std::ceil(*quota))));
  }
  return cpus;
}

}  // namespace attn::cpu
