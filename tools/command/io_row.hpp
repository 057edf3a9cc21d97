// One row of `attn io`: what an algorithm moves for a problem, modelled, planned and measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attn/plan.hpp"
#include "command/io_gpu.hpp"
#include "command/json_report.hpp"
#include "traffic/counters.hpp"
#include "traffic/plan.hpp"
#include "traffic/tiles.hpp"
#include "verify/data.hpp"

namespace attn::command {

struct IoChoice {
  Phase phase = Phase::forward;
  Algorithm algorithm = Algorithm::automatic;
  std::int64_t fast_bytes = 0;
  std::int64_t block_q = 0, block_k = 0;  // 0: by the paper's rule
  std::string arch{};                     // empty: the plan of the CPU backend
  std::string kernel{};                   // PlanOptions::kernel, with arch
  int multiprocessors = 132;
  bool on_gpu = false;  // what is measured is what the counters of a GPU say
};

struct IoRow {
  std::string descriptor{};
  IoChoice choice{};
  traffic::Blocks blocks{};
  traffic::TileSums tiles{};
  double flops = 0;
  traffic::Traffic compulsory{};
  std::optional<traffic::Traffic> model{};
  std::optional<traffic::PlanTraffic> plan{};
  std::string no_plan{};  // why there is none
  // Measured, where asked for.
  std::optional<traffic::Traffic> simulated{};
  std::string no_simulation{};
  std::optional<traffic::CacheCounts> counted{};
  double seconds = 0;  // of a call, median
  // On a GPU in the place of both.
  std::optional<traffic::GpuCounts> gpu{};
  std::string no_gpu{};  // why there are none
};

// Refuses a problem of which the algorithm has too many tiles to count.
void check_io_size(const std::string& descriptor, const Problem& problem, const IoChoice& choice);
// Sequences count with their full lengths. Throws Error as the library does for the problem.
IoRow make_io_row(const std::string& descriptor, const Problem& problem, const IoChoice& choice);
// Simulates a cache of fast_bytes, and runs the CPU backend on one thread under the processor's
// counters.
void measure_io(IoRow& row, verify::CaseData& data);

// Runs the pass on the GPU: compares it with fp64, and then has ncu count it. False where its
// results are wrong, so that nothing is counted. Throws as Ncu and forward do.
bool measure_io_on_gpu(IoRow& row, const GpuPass& pass, verify::CaseData& data, const Ncu& ncu);

std::string io_table_header(bool on_gpu);
std::string io_table_line(const IoRow& row);
// Why columns of the row are empty, a line each.
std::vector<std::string> io_notes(const IoRow& row);
// docs/command.md has the shape.
Json io_json(const IoRow& row);

}  // namespace attn::command
