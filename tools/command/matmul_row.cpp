#include "command/matmul_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "attn/machine.hpp"
#include "command/command.hpp"
#include "command/svg.hpp"

namespace attn::command {
namespace {

// Three digits, whatever the rung: a naive one on a CPU has 0.0005.
std::string format_tflops(double gflops) {
  return gflops < 1e5 ? fmt::format("{:.3g}", gflops * 1e-3) : fmt::format("{:.0f}", gflops * 1e-3);
}

}  // namespace

void measure_matmul(MatmulRow& row, verify::MatmulData& data, const Context& context,
                    const TimingRule& rule) {
  data.poison();
  const auto call = [&] { matmul(row.plan, data.inputs, data.c, context); };
  const auto start = std::chrono::steady_clock::now();
  call();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  row.check = check_matmul(data);
  row.damage = data.damage();
  if (!row.correct()) return;
  Context of_peak = context;
  of_peak.isa = row.plan.isa;
  row.peak_gflops = measure_peak_gflops(row.plan.compute, of_peak);
  // The lowest rungs may take half a minute a call: the one that was checked says enough.
  if (taken.count() > 1) {
    row.timing.seconds = {taken.count()};
  } else {
    row.timing = time_calls(call, rule);
  }
}

std::string matmul_header() {
  return fmt::format("{:<40} {:<20} {:>10} {:>9} {:>6} {:>7} {:>11}  {}", "problem", "rung", "time",
                     "TFLOP/s", "peak", "cublas", "error", "compared with fp64");
}

std::string matmul_line(const MatmulRow& row, double peer_gflops) {
  std::string line = fmt::format("{:<40} {:<20} ", to_string(row.problem), row.implementation);
  if (!row.refused.empty()) return line + row.refused;
  if (!row.correct()) {
    return line + fmt::format("WRONG: {:.3g} of the allowed error; {} {}", row.check.worst,
                              row.check.where, row.damage);
  }
  const auto share = [&](double whole) {
    return whole > 0 ? fmt::format("{:.1f}%", 100 * row.gflops() / whole) : std::string("-");
  };
  line += fmt::format("{:>10} {:>9} {:>6} {:>7} {:>11}  {} elements",
                      format_seconds(row.timing.median()), format_tflops(row.gflops()),
                      share(row.peak_gflops), share(peer_gflops),
                      fmt::format("{:.2f} of it", row.check.worst), row.check.checked);
  if (row.problem.masked == MaskedMatrix::none) return line;
  return line + fmt::format(", {:.3g} of the blocks", row.density);
}

Json matmul_json(const MatmulRow& row) {
  Json json{{"problem", to_string(row.problem)}, {"rung", row.implementation}};
  if (!row.refused.empty()) {
    json["refused"] = row.refused;
    return json;
  }
  if (row.problem.masked != MaskedMatrix::none) json["density"] = row.density;
  json["correct"] = row.correct();
  json["checked"] = row.check.checked;
  json["share_of_allowed_error"] = std::isfinite(row.check.worst) ? Json(row.check.worst) : Json();
  json["plan"] = to_string(row.plan);
  if (!row.correct()) return json;
  json["calls"] = row.timing.seconds.size();
  json["seconds_median"] = row.timing.median();
  json["seconds_minimum"] = row.timing.minimum();
  json["flops"] = row.problem.flops();
  json["bytes"] = row.plan.bytes;
  json["gflops"] = row.gflops();
  json["peak_gflops"] = row.peak_gflops;
  json["share_of_peak"] = row.peak_gflops > 0 ? Json(row.gflops() / row.peak_gflops) : Json();
  return json;
}

namespace {

// Draws the rungs of one problem, of which a line would be a point: a bar for each, its rate, and
// its share of the peak.
std::string rungs_plot(const std::vector<const MatmulRow*>& rows) {
  std::vector<Bar> bars;
  for (const MatmulRow* row : rows) {
    std::string text = format_tflops(row->gflops());
    if (row->peak_gflops > 0) {
      text += fmt::format(", {:.1f} % of the peak", 100 * row->gflops() / row->peak_gflops);
    }
    bars.push_back({row->implementation, row->gflops(), text});
  }
  return render_bars("Matrix products, rung by rung",
                     "TFLOP/s of " + to_string(rows[0]->problem) + ", checked against fp64", bars);
}

}  // namespace

std::string matmul_plot(const std::vector<MatmulRow>& rows) {
  std::vector<const MatmulRow*> shown;
  for (const MatmulRow& row : rows) {
    if (row.correct() && row.problem.flops() > 0) shown.push_back(&row);
  }
  const auto same = [&](const MatmulRow* row) {
    return to_string(row->problem) == to_string(shown[0]->problem);
  };
  if (!shown.empty() && std::ranges::all_of(shown, same)) return rungs_plot(shown);
  Panel panel{"GFLOP/s, checked against fp64", "cube root of m n k", 10, {}, [](double x) {
                return fmt::format("{:g}", x);
              }};
  for (const MatmulRow* row : shown) {
    auto series = std::ranges::find(panel.series, row->implementation, &Series::name);
    if (series == panel.series.end()) {
      series = panel.series.insert(series, Series{row->implementation, {}});
    }
    series->points.emplace_back(std::cbrt(row->problem.flops() / 2), row->gflops());
  }
  for (Series& series : panel.series) std::ranges::sort(series.points);
  return render_svg("Matrix products, rung by rung", {panel});
}

}  // namespace attn::command
