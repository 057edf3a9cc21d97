// From files and options to a problem and its inputs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attn/run.hpp"
#include "io/array.hpp"
#include "io/safetensors.hpp"

namespace attn::command {

// Text options are empty when not given. A source is the name of a tensor in `input`, or the path
// of a file that ends in .npy.
struct ProblemOptions {
  std::string input;
  std::string q = "q", k = "k", v = "v";  // sources
  std::string sink, bias, documents;      // sources
  std::vector<std::string> buffers;       // "name=source"
  std::string mask, score;                // an expression, or tokens of the text form
  std::string tokens;                     // of the text form
  std::string window, softcap, scale, dtype;
  bool causal = false, alibi = false;
};

// Owns what `inputs` points to.
struct RunProblem {
  Problem problem;  // complete
  Inputs inputs;
  int rank = 4;  // of Q as it was given; 3 is a batch of one
  std::vector<io::Array> arrays;
};

// Throws Error(invalid_argument | io).
RunProblem read_problem(const ProblemOptions& options);

}  // namespace attn::command
