// What `attn bench` shows: lines of a table, a JSON file, a plot.
#pragma once

#include <string>
#include <vector>

#include "command/bench_row.hpp"
#include "command/json_report.hpp"

namespace attn::command {

// Problems are padded to this width.
std::string table_header(std::size_t descriptor_width, bool on_gpu);
std::string table_line(const BenchRow& row, std::size_t descriptor_width);

void add_row(JsonReport& report, const BenchRow& row);

// Time and memory over seqlen_k, one line for each algorithm (number of threads, and problem apart
// from its lengths, where these differ).
std::string plot(const std::vector<BenchRow>& rows);

}  // namespace attn::command
