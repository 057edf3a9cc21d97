// Shapes of forward_sm80_few_rows: decoding, where a K, V head has a few rows and many keys.
#pragma once

#include <string>

#include "attn/problem.hpp"
#include "cuda/heuristics/forward_config.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

// Why the kernel does not take a problem of 16-bit types; empty when it does.
std::string few_rows_obstacle(const Problem& problem, Arch arch);

// The shape for a problem that it takes.
void shape_few_rows(ForwardConfig& config, const Problem& problem);

// Blocks of threads of it that a multiprocessor holds at once.
int few_rows_per_multiprocessor(const ForwardConfig& config);

}  // namespace attn::cuda
