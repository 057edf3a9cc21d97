// From files and options to a problem and its inputs.
#pragma once

#include <list>
#include <string>
#include <vector>

#include "attn/run.hpp"
#include "io/array.hpp"
#include "io/safetensors.hpp"

namespace attn::command {

// Text options are empty when not given. A source is the name of a tensor in `input`, or the path
// of a file that ends in .npy. Where cu_seqlens_q to d_lse have none, the tensor of `input` with
// the name of the member is taken, if there is one.
struct ProblemOptions {
  std::string input;
  std::string q = "q", k = "k", v = "v";  // sources
  std::string cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table, sink, rng_state, d_o,
      d_lse;                         // sources
  std::string bias, documents;       // sources
  std::vector<std::string> buffers;  // "name=source"
  std::vector<std::string> scalars;  // "name=number"
  std::string mask, score;           // an expression, or tokens of the text form
  std::string tokens;                // of the text form
  std::string window, softcap, scale, dtype;
  bool causal = false, alibi = false;
  bool backward = false;  // d_o is needed
};

// Owns what `inputs` and `d_outputs` point to.
struct RunProblem {
  Problem problem;  // complete
  Inputs inputs;
  OutputGradients d_outputs;  // with backward
  // Given without the batch, as [seqlen, heads, head_dim]: a dense batch of one.
  bool batchless_q = false, batchless_k = false, batchless_v = false;
  std::list<io::Array> arrays;
  std::vector<std::string> files;  // that tensors were read from
};

// Throws Error(invalid_argument | io).
RunProblem read_problem(const ProblemOptions& options);

}  // namespace attn::command
