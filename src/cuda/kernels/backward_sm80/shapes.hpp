// Tile shapes of backward_sm80, the portable backward kernel that adds dQ to memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "attn/problem.hpp"
#include "cuda/jit/compile.hpp"

namespace attn::cuda {

struct BackwardSm80Shape {
  int head_dim;  // up to this, of the larger of Q K's and V's
  int queries, keys, warps, stages;
  // Warps along the queries of S and dP, the keys of dV and dK, the queries of dQ.
  int score_warps, key_warps, query_warps;
  bool store_matrices;  // P and dS are stored by stmatrix, on 9.0 and up
  int spill_bytes;      // accepted, at most, under any of tests/cuda/kernels_backward.txt
  std::string_view reason;
  bool split_scores = false;  // half of the warps compute S and half dP
  int l2_megabytes = 20;      // of the heads whose tiles are dealt together
};

// Bytes of shared memory that BackwardSm80Layout takes.
std::int64_t shared_bytes(const BackwardSm80Shape& shape, const Problem& problem);
// The first row that fits the architecture, of those for the smallest head size that holds the
// problem's; null where none does.
const BackwardSm80Shape* backward_sm80_shape(const Problem& problem, Arch arch);

// `shape` with the parts that `text` names: m<queries> n<keys> w<warps> s<stages> x<warps along the
// queries of S> k<along the keys of dK> q<along the queries of dQ> l<megabytes> t<stmatrix>
// h<split_scores>. Throws Error(invalid_argument) naming the part and what is accepted.
BackwardSm80Shape with_parts(BackwardSm80Shape shape, std::string_view text);

// Why a shape cannot run; empty where it can.
std::string obstacle_of(const BackwardSm80Shape& shape);

}  // namespace attn::cuda
