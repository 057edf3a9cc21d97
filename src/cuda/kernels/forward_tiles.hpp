// The tiles of a forward pass: how rows of query heads share them, and how many there are.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "core/tensor/size.hpp"
#include "cuda/kernels/forward_kernel.hpp"

namespace attn::cuda {

// Query heads of one K, V head that share a tile of tile_rows rows: all of a group where that
// leaves a tenth fewer tiles, and where they divide `rows`; else 1. uneven: sequences differ much
// in their numbers of queries (ForwardTensors::uneven_q), so that some have far fewer than
// seqlen_q.
int packed_group(const Problem& problem, int tile_rows, int rows, bool uneven);

// With lists of keys the problem of which each query is a sequence of its own, whose keys are the
// entries of its list: tile shapes and splits are chosen for that. Others are themselves.
Problem one_query_each(const Problem& problem);

// Rows of O, one for each batch entry, query head and query.
core::Size all_rows(const Problem& problem);

// Tiles of the rows of a group's query heads.
core::Size m_blocks(const Problem& problem, const ForwardConfig& config);

// Tiles of O that the kernel works on, splits counted; query heads where each is a tile.
core::Size num_tiles(const Problem& problem, const ForwardConfig& config, std::int32_t num_splits);

// Whether thread blocks stay on their multiprocessor and take tile after tile.
bool stays(const ForwardConfig& config) noexcept;

inline constexpr std::int32_t kMostSplits = 128;

}  // namespace attn::cuda
