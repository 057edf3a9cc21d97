// The workspace of the backward pass: LSE and D of each row, sums of the gradients of buffers, then
// what a kernel of one pass keeps, the sums of dQ of backward_flash_attention, or P and dS of
// backward_standard.
#pragma once

#include <cstdint>

#include "core/tensor/size.hpp"
#include "cuda/heuristics/choose_backward.hpp"

namespace attn::cuda {

// How many rows there are, one for each batch entry, query head and query; each has RowTerms.
core::Size num_rows(const Problem& problem);
core::Size row_terms_bytes(const Problem& problem);
core::Size num_scores(const Problem& problem);  // elements of P
// The offset, in bytes, at which the last part begins.
core::Size one_pass_offset(const Problem& problem, bool deterministic);

// Bytes of all. Throws Error(unsupported) for problems whose memory or grids no GPU has.
std::int64_t checked_workspace(const Problem& problem, BackwardKernel kernel,
                               const BackwardWish& wish);

}  // namespace attn::cuda
