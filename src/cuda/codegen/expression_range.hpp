// What integers of an expression can be at most.
#pragma once

#include <vector>

#include "core/expr/program.hpp"

namespace attn::cuda {

// Sequences up to this length are short: sums and differences of two lengths and two positions stay
// within 22 bits and a sign, which device code converts to float32 without a conversion instruction
// (attn_position_to_float in src/cuda/device/expr/exact.cuh).
inline constexpr int kShortSequence = 1 << 20;

// Tells for each instruction whether it is an int32 in [-2^22, 2^22) at every point of short
// sequences, and up to a tile past their ends, where kernels evaluate scores that they then drop.
std::vector<bool> small_in_short_sequences(const expr::Program& program);

}  // namespace attn::cuda
