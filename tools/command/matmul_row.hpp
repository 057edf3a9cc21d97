// A line of `attn matmul`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attn/matmul.hpp"
#include "command/bench_row.hpp"
#include "command/json_report.hpp"
#include "verify/matmul.hpp"

namespace attn::command {

struct MatmulRow {
  MatmulProblem problem;
  std::string implementation;  // a rung, or "cublas"
  std::string refused;         // why not, else empty
  MatmulPlan plan{};
  double density = 1;  // the share of blocks that a mask has
  verify::MatmulCheck check{};
  std::string damage{};
  Timing timing{};
  double peak_gflops = 0;  // of what is multiplied, in the same run

  bool correct() const { return refused.empty() && check.passed() && damage.empty(); }
  double gflops() const { return problem.flops() / timing.median() * 1e-9; }
};

// Checks the plan's result on poisoned memory, then times it. On the CPU.
void measure_matmul(MatmulRow& row, verify::MatmulData& data, const Context& context,
                    const TimingRule& rule);

std::string matmul_header();
std::string matmul_line(const MatmulRow& row, double peer_gflops);
Json matmul_json(const MatmulRow& row);
// TFLOP/s over the size (the cube root of m n k), a line for each implementation.
std::string matmul_plot(const std::vector<MatmulRow>& rows);

}  // namespace attn::command
