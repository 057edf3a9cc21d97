// Where dropout's rows and keys stand in a larger problem, as text in front of a kernel.
#pragma once

#include <string>

#include "core/problem/places.hpp"

namespace attn::cuda {

// Definitions that softmax/dropout.cuh reads. The runs are those of all sequences, and those of
// keys begin and shift by multiples of 64, of which a call of Philox gives the bits.
std::string places_text(const core::Places& places);

}  // namespace attn::cuda
