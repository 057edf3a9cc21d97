// What `attn run` writes.
#pragma once

#include <list>
#include <string>
#include <utility>
#include <vector>

#include "attn/run.hpp"
#include "command/run_problem.hpp"
#include "io/array.hpp"

namespace attn::command {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Outputs and, where they are asked for, gradients, in memory of their own; NaN until something
// writes them.
class RunResults {
 public:
  RunResults(const RunProblem& read, bool backward, bool max_logit);

  Outputs outputs;
  Gradients gradients;  // of the buffers: each that the score reads as float

  // The results by the names that they have in a file, in the shapes in which Q, K and V were
  // given.
  NamedTensors named(const RunProblem& read, bool with_lse) const;

 private:
  Tensor keep(DType dtype, const std::vector<std::int64_t>& shape);

  std::list<io::Array> arrays_;
};

// What cannot be written to `path` is refused before it is computed. Throws
// Error(invalid_argument | io).
void check_results(const std::string& path, const NamedTensors& tensors);
void write_results(const std::string& path, const NamedTensors& tensors);

}  // namespace attn::command
