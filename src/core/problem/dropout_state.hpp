// Seed and offset of the dropout of a call, wherever they stand.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "attn/tensor.hpp"

namespace attn::core {

// `dropout` with seed and offset as numbers, read from rng_state where they stand there. rng_state
// was checked, and the host can read it.
inline Dropout with_state(Dropout dropout, const Tensor& rng_state) {
  if (!dropout.rng_state) return dropout;
  const auto* const words = static_cast<const std::int64_t*>(rng_state.data);
  dropout.seed = static_cast<std::uint64_t>(words[0]);
  dropout.offset = static_cast<std::uint64_t>(words[1]);
  dropout.rng_state = false;
  return dropout;
}

}  // namespace attn::core
