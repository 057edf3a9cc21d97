// The tiles of a backward pass: how many there are, in how many parts, and in which order they
// come.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "core/tensor/size.hpp"
#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

// Rows, one for each batch entry, query head and query.
core::Size num_rows(const Problem& problem);

// Gradients of buffers: parts into which the batch entries and heads that share elements are cut.
int num_splits(const Problem& problem, const BackwardConfig& config);
// Tiles of the gradient, one a block of threads where these do not stay; K, V heads where each is a
// tile.
core::Size num_tiles(const Problem& problem, const BackwardConfig& config);

// One pass: pairs of batch and K, V head whose Q, dO and float32 dQ are to stay in L2 together, of
// which every multiprocessor works on some keys at a time. At least so many that each
// multiprocessor has a tile of theirs: else the longest tiles of the last pair begin when most work
// is done, and keep others waiting. It gives 5 % over one pair under a
// causal mask with 32 query and 8 K, V heads of 4096 rows, d 128, on an H200.
int heads_at_once(const Problem& problem, const BackwardConfig& config);
// How many of `pairs` things to take at a time, about `most`: groups of one size, as the tiles of a
// last, smaller group would leave multiprocessors idle at the end. 128, 9: 8.
std::int64_t even_group(std::int64_t pairs, std::int64_t most) noexcept;

}  // namespace attn::cuda
