// Tensor maps of backward kernels that are given them.
#pragma once

#include <optional>

#include "attn/run.hpp"
#include "cuda/driver/types.hpp"

namespace attn::cuda {

// Mirrors attn::device::BackwardMaps.
struct BackwardMaps {
  CUtensorMap q, k, v, d_o;
};

// Boxes have so many rows of Q and dO, and of K and V. Nothing where the driver does not take a
// tensor's strides.
std::optional<BackwardMaps> backward_maps(const Problem& problem, const Inputs& inputs,
                                          const Tensor& d_o, int query_rows, int key_rows);

}  // namespace attn::cuda
