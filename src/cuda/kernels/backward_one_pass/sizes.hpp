// How much the kernels that compute S once, and those before and after them, work on: rows, words
// and blocks of threads.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"
#include "core/tensor/size.hpp"
#include "cuda/kernels/backward_kernel.hpp"

namespace attn::cuda {

// Queries of a place (device::BackwardParams), which the kernels before and after go by.
inline constexpr int kPlaceQueries = 64;
inline constexpr int kWordBlocks = 32;  // of queries, of a word
// Threads of a block of threads of each of the kernels around the main one, and threads that make a
// word.
inline constexpr std::int64_t kRowsThreads = 256, kWordsThreads = 128, kDqThreads = 128,
                              kWordThreads = 32;

// Places that the queries of a head fill: whole blocks of queries of the kernel.
std::int64_t query_blocks(const Problem& problem, const BackwardConfig& config);
std::int64_t key_blocks(const Problem& problem, const BackwardConfig& config);
// Rows of LSE, D and dQ: those of whole blocks of queries, of all heads.
core::Size one_pass_rows(const Problem& problem, const BackwardConfig& config);
// Words that say what blocks of queries see of tiles of keys; 0 for kernels that read none.
core::Size one_pass_words(const Problem& problem, const BackwardConfig& config);
// One pass: threads of the kernel before it that share a row: as many as it has 16 bytes, a power
// of two, and at most a warp.
int backward_row_threads(const BackwardConfig& config) noexcept;
// Blocks of threads of the largest launch, or its tiles, where these are more.
core::Size one_pass_blocks(const Problem& problem, const BackwardConfig& config);

}  // namespace attn::cuda
