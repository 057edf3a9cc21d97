#include "command/bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "command/command.hpp"
#include "command/gpu_json.hpp"
#include "command/svg.hpp"

namespace attn::command {
namespace {

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.0f}%", 100 * part / whole) : "-";
}

Json row_json(const BenchRow& row) {
  Json json{{"problem", row.descriptor},
            {"phase", name(row.plan.phase)},
            {"algorithm", name(row.plan.algorithm)},
            {"threads", row.plan.threads}};
  if (row.on_gpu()) json["device"] = to_string(row.plan.device);
  if (!row.refused.empty()) {
    json["refused"] = row.refused;
    return json;
  }
  json["isa"] = name(row.plan.isa);
  json["compute"] = name(row.plan.compute);
  json["correct"] = row.correct;
  json["checked"] = row.checked;
  json["worst"] = row.worst;
  json["workspace_bytes"] = row.plan.workspace_bytes;
  json["plan"] = to_string(row.plan);
  if (!row.correct) return json;
  json["calls"] = row.timing.seconds.size();
  json["seconds_median"] = row.timing.median();
  json["seconds_minimum"] = row.timing.minimum();
  if (!row.on_gpu()) json["processor_seconds_median"] = row.timing.processor_median();
  json["flops"] = row.flops;
  json["bytes"] = row.bytes;
  json["gflops"] = row.gflops();
  json["peak_gflops"] = row.peak_gflops;
  json["share_of_peak"] = row.gflops() / row.peak_gflops;
  json["gbps"] = row.gbps();
  json["read_gbps"] = row.read_gbps;
  json["share_of_bandwidth"] = row.gbps() / row.read_gbps;
  json["peak_memory_bytes"] = row.peak_memory ? Json(*row.peak_memory) : Json(nullptr);
  return json;
}

// "1.00 ms" as "1 ms".
std::string round_number(std::string text) {
  const std::size_t point = text.find('.');
  const std::size_t space = text.find(' ');
  if (point < space && text.find_first_not_of('0', point + 1) == space) {
    text.erase(point, space - point);
  }
  return text;
}

// The problem apart from its lengths.
std::string family(const BenchRow& row) {
  Problem problem = row.plan.problem;
  problem.seqlen_q = problem.seqlen_k = 0;
  return fmt::format("{} {}", to_string(problem), name(row.plan.phase));
}

}  // namespace

std::string table_header(std::size_t descriptor_width, bool on_gpu) {
  if (on_gpu) {
    return fmt::format("{:<{}}  {:<17} {:>10} {:>8} {:>6} {:>8} {:>6} {:>10}  {}", "problem",
                       descriptor_width, "algorithm", "time", "TFLOP/s", "matrix", "GB/s", "copy",
                       "workspace", "compared with fp64");
  }
  return fmt::format("{:<{}}  {:<17} {:>7} {:>10} {:>10} {:>8} {:>6} {:>7} {:>6} {:>10} {:>10}  {}",
                     "problem", descriptor_width, "algorithm", "threads", "time", "processor",
                     "GFLOP/s", "peak", "GB/s", "read", "workspace", "memory",
                     "compared with fp64");
}

std::string table_line(const BenchRow& row, std::size_t descriptor_width) {
  std::string line =
      fmt::format("{:<{}}  {:<17} ", row.descriptor, descriptor_width, name(row.plan.algorithm));
  if (!row.on_gpu()) line += fmt::format("{:>7} ", row.plan.threads);
  if (!row.refused.empty()) return line + row.refused;
  if (!row.correct) return line + fmt::format("WRONG ({}): {}", row.checked, row.worst);
  const std::string workspace = format_bytes(static_cast<double>(row.plan.workspace_bytes));
  if (row.on_gpu()) {
    return line + fmt::format("{:>10} {:>8.1f} {:>6} {:>8.0f} {:>6} {:>10}  {}",
                              format_seconds(row.timing.median()), row.gflops() * 1e-3,
                              percent(row.gflops(), row.peak_gflops), row.gbps(),
                              percent(row.gbps(), row.read_gbps), workspace, row.checked);
  }
  return line +
         fmt::format("{:>10} {:>10} {:>8.1f} {:>6} {:>7.2f} {:>6} {:>10} {:>10}  {}",
                     format_seconds(row.timing.median()),
                     format_seconds(row.timing.processor_median()), row.gflops(),
                     percent(row.gflops(), row.peak_gflops), row.gbps(),
                     row.memory_bound() ? percent(row.gbps(), row.read_gbps) : "-", workspace,
                     row.peak_memory ? format_bytes(static_cast<double>(*row.peak_memory)) : "-",
                     row.checked);
}

void add_row(JsonReport& report, const BenchRow& row) {
  report.add(row_json(row));
  if (!row.on_gpu()) return;
  report.set_machine("gpu", gpu_json(cuda::device_info(row.plan.device.index)));
}

std::string plot(const std::vector<BenchRow>& rows) {
  std::set<std::string> families;
  std::set<std::int32_t> threads;
  for (const BenchRow& row : rows) {
    if (!row.correct) continue;
    families.insert(family(row));
    threads.insert(row.plan.threads);
  }
  std::vector<Panel> panels{{"Time of a call",
                             "seqlen",
                             10,
                             {},
                             [](double s) { return round_number(format_seconds(s)); }},
                            {"Memory beyond inputs and outputs", "seqlen", 2, {}, [](double b) {
                               return round_number(format_bytes(b));
                             }}};
  const auto series = [](Panel& panel, const std::string& label) -> Series& {
    for (Series& s : panel.series) {
      if (s.name == label) return s;
    }
    return panel.series.emplace_back(Series{label, {}});
  };
  // The kernel counts pages of 4 KiB: smaller growth cannot be told from none.
  constexpr double kPage = 4096;
  for (const BenchRow& row : rows) {
    if (!row.correct) continue;
    std::string label(name(row.plan.algorithm));
    if (threads.size() > 1) label += fmt::format(", {} threads", row.plan.threads);
    if (families.size() > 1) label += ", " + family(row);
    const auto x = static_cast<double>(std::max<std::int64_t>(row.plan.problem.seqlen_k, 1));
    series(panels[0], label).points.emplace_back(x, row.timing.median());
    const auto memory = static_cast<double>(row.peak_memory.value_or(row.plan.workspace_bytes));
    series(panels[1], label).points.emplace_back(x, std::max(memory, kPage));
  }
  for (Panel& panel : panels) {
    for (Series& s : panel.series) std::sort(s.points.begin(), s.points.end());
  }
  std::string title = "attn bench";
  if (families.size() == 1) title += ": " + *families.begin();
  if (threads.size() == 1) title += fmt::format(", {} threads", *threads.begin());
  return render_svg(title, panels);
}

}  // namespace attn::command
