#include "traffic/ncu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <sstream>

#include "attn/error.hpp"

namespace attn::traffic {
namespace {

struct Counter {
  std::string_view name;  // of ncu, without its ".sum"
  std::optional<double> GpuCounts::*bytes;
  double factor;  // bytes of one unit that is counted
};

constexpr std::array kCounters{
    Counter{"l1tex__m_xbar2l1tex_read_bytes", &GpuCounts::l2_read, 1},
    Counter{"l1tex__m_l1tex2xbar_write_bytes", &GpuCounts::l2_written, 1},
    Counter{"dram__bytes_read", &GpuCounts::dram_read, 1},
    Counter{"dram__bytes_write", &GpuCounts::dram_written, 1},
    // A wavefront passes 32 banks of 4 bytes.
    Counter{"l1tex__data_pipe_lsu_wavefronts_mem_shared", &GpuCounts::shared, 128},
};
constexpr std::string_view kSum = ".sum";

struct Unit {
  std::string_view name;
  double bytes;
};
// --print-units base gives the first two; the rest are there for an ncu that does not follow it.
constexpr std::array kUnits{Unit{"byte", 1},    Unit{"", 1},        Unit{"Kbyte", 1e3},
                            Unit{"Mbyte", 1e6}, Unit{"Gbyte", 1e9}, Unit{"Tbyte", 1e12}};

// The cells of a line of CSV in which each is quoted; two quotes within one stand for a quote.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  bool inside = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '"') {
      if (inside) cells.back() += line[i];
    } else if (!inside) {
      inside = true;
      cells.emplace_back();
    } else if (i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[i++];
    } else {
      inside = false;
    }
  }
  return cells;
}

// "26,015,010,048" of a locale that groups digits.
double number_of(const std::string& name, std::string text) {
  std::erase(text, ',');
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorCode::io,
                fmt::format("the value of {} in ncu's table is \"{}\", not a number", name, text));
  }
  return value;
}

double unit_of(const std::string& name, const std::string& text) {
  const auto* const unit = std::ranges::find(kUnits, text, &Unit::name);
  if (unit == kUnits.end()) {
    throw Error(ErrorCode::io,
                fmt::format("the unit of {} in ncu's table is \"{}\", accepted are byte, Kbyte, "
                            "Mbyte, Gbyte, Tbyte and none",
                            name, text));
  }
  return unit->bytes;
}

// The place of a column in the table's first line.
std::size_t column(const std::vector<std::string>& header, std::string_view name) {
  const auto at = std::ranges::find(header, name);
  if (at == header.end()) {
    throw Error(ErrorCode::io, fmt::format("ncu's table has no column \"{}\"", name));
  }
  return static_cast<std::size_t>(at - header.begin());
}

}  // namespace

std::string ncu_metrics(std::string_view listed) {
  std::set<std::string> known;
  std::istringstream lines{std::string(listed)};
  for (std::string line; std::getline(lines, line);) {
    known.insert(line.substr(0, line.find_first_of(" \t\r")));
  }
  std::string some, all;
  for (const Counter& counter : kCounters) {
    const std::string metric = fmt::format("{}{}", counter.name, kSum);
    all += (all.empty() ? "" : ",") + metric;
    if (known.contains(std::string(counter.name))) some += (some.empty() ? "" : ",") + metric;
  }
  return some.empty() ? all : some;
}

std::vector<std::string> ncu_words(const std::string& metrics, const std::string& log,
                                   const std::vector<std::string>& command) {
  std::vector<std::string> words{
      "--profile-from-start", "off",  "--clock-control", "none", "--cache-control", "none", "--csv",
      "--print-units",        "base", "--log-file",      log,    "--metrics",       metrics};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

GpuCounts parse_ncu(std::string_view text) {
  GpuCounts counts;
  std::set<std::string> launches;
  std::set<std::string_view> missing;
  std::vector<std::string> header;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('"')) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (header.empty()) {
      header = cells;
      continue;
    }
    const auto cell = [&](std::string_view name) {
      const std::size_t at = column(header, name);
      return at < cells.size() ? cells[at] : std::string();
    };
    launches.insert(cell("ID"));
    const std::string metric = cell("Metric Name");
    const auto* const counter = std::ranges::find_if(
        kCounters, [&](const Counter& c) { return metric == fmt::format("{}{}", c.name, kSum); });
    const std::string value = cell("Metric Value");
    if (counter == kCounters.end()) continue;
    if (value == "n/a") missing.insert(counter->name);
    if (missing.contains(counter->name)) {  // the sum of all launches is not known
      (counts.*counter->bytes).reset();
      continue;
    }
    std::optional<double>& bytes = counts.*counter->bytes;
    bytes = bytes.value_or(0) +
            number_of(metric, value) * counter->factor * unit_of(metric, cell("Metric Unit"));
  }
  counts.launches = static_cast<int>(launches.size());
  return counts;
}

}  // namespace attn::traffic
