// The tiles of a forward pass: how rows of query heads share them, how many there are, in how many
// parts of the keys, and in which order they come.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "core/tensor/size.hpp"
#include "cuda/heuristics/forward_config.hpp"

namespace attn::cuda {

// Query heads of one K, V head that share a tile of block_m rows: all of a group where that leaves
// a tenth fewer tiles, and where they divide `rows`; else 1.
int packed_group(const Problem& problem, int block_m, int rows);

// Blocks of block_m rows of a group's query heads.
core::Size m_blocks(const Problem& problem, const ForwardConfig& config);

// Tiles of O that the kernel works on, splits counted; flash_attention: query heads.
core::Size num_tiles(const Problem& problem, const ForwardConfig& config, std::int32_t num_splits);

constexpr std::int32_t kMostSplits = 128;
// Parts of the keys so that a device with sm_count multiprocessors is busy, kMostSplits at most; 1
// where tiles suffice, and of kernels that do not split.
std::int32_t choose_splits(const Problem& problem, const ForwardConfig& config, int sm_count);

// Pairs of batch and head whose tiles come together, the longest first: their K and V are to stay
// in L2, of which every multiprocessor works on some rows at a time. Without a mask all tiles of a
// pair are as long, and pairs come one by one.
int heads_at_once(const Problem& problem, const ForwardConfig& config);

}  // namespace attn::cuda
