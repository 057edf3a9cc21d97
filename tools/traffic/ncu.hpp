// Nsight Compute (ncu), which reads the counters of a GPU: its command line, and what its table
// says.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attn::traffic {

// Bytes that some launches moved, summed; empty where this GPU, or this ncu, has no such counter.
struct GpuCounts {
  std::optional<double> l2_read, l2_written;  // from L2 to the multiprocessors, and back
  std::optional<double> dram_read, dram_written;
  // As loads and stores of threads use it: what wgmma reads there and the copy engine (TMA) writes
  // there is not in it.
  std::optional<double> shared;
  int launches = 0;

  std::optional<double> l2() const { return sum(l2_read, l2_written); }
  std::optional<double> dram() const { return sum(dram_read, dram_written); }

 private:
  static std::optional<double> sum(std::optional<double> a, std::optional<double> b) {
    return a && b ? std::optional(*a + *b) : std::nullopt;
  }
};

// The value of --metrics for GpuCounts. `listed` is what `ncu --query-metrics` prints: a counter
// that it does not name is left out, as ncu refuses a list with one that it does not know. Where it
// names none, it was not a list, and all are asked for.
std::string ncu_metrics(std::string_view listed);

// The words that have ncu write, into the file `log`, the table of what `command` launches between
// cuProfilerStart and cuProfilerStop. Clocks and caches are left as they are.
std::vector<std::string> ncu_words(const std::string& metrics, const std::string& log,
                                   const std::vector<std::string>& command);

// Sums over the launches of such a file. Its lines that begin with no quote are ncu's own messages.
// Throws Error(io) for a table that lacks a column, and for a value or a unit that is not known.
GpuCounts parse_ncu(std::string_view text);

}  // namespace attn::traffic
