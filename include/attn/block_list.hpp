// Block-sparse attention whose blocks come as lists: each block of queries names the blocks of keys
// that it sees, as a router chooses them anew in each step (MoBA, Lu et al. 2025; sparse attention
// of video models). Lists become a byte for each block, which masks read:
//
//   attn::write_block_mask(lists, blocks);  // i32 [b, h, n / 128, k] -> u8 [b, h, n / 128, n / 64]
//   problem.mask = attn::block_mask(blocks, 128, 64) && attn::causal();
//
// On Hopper blocks of 64 and of 128 keys run forward at the speed of dense attention for what they
// hold, where 128 queries share a list (docs/speed.md, "Lists of blocks").
#pragma once

#include <cstdint>
#include <string_view>

#include "attn/context.hpp"
#include "attn/export.hpp"
#include "attn/expr.hpp"
#include "attn/tensor.hpp"

namespace ATTN_API attn {

// A query sees the keys of the blocks whose byte is not 0: blocks[batch, head / group,
// query / block_q, key / block_k] != 0. Queries and keys count from 0 within their sequence.
//
// blocks: u8 [batch or 1, heads, ceil(seqlen_q / block_q), ceil(seqlen_k / block_k)], where heads
// is heads_q / group or 1. Sizes are not checked: a query past the last block sees nothing, a key
// past it is not seen, and a dimension of size 1 serves every index. The memory is not copied and
// must live as long as calls read it; leave data null to bind it by `name` (Inputs::buffers), which
// two block masks in one problem do not share.
// Throws Error(invalid_argument) for another dtype or rank and for a size or group below 1.
// Thread-safe.
expr::Expr block_mask(const Tensor& blocks, std::int32_t block_q, std::int32_t block_k,
                      std::int32_t group = 1, std::string_view name = "blocks");

// blocks[b, h, i, j] <- 1 where lists[b, h, i, ...] names j, 0 elsewhere. Every element is written.
// An entry that is no block, as -1, names nothing; one that stands twice counts once.
//
// lists: i32 or i64 [batch, heads, blocks_q, entries]; blocks: u8 [batch, heads, blocks_q,
// blocks_k]; last dimensions contiguous, other strides free but, of blocks, not 0 for sizes above
// 1; on the CPU or one CUDA device of sm_80 and up. On a GPU the work is put into context.stream
// and the call returns; the first one on a device compiles a kernel. On the CPU context.executor
// does the work. Throws Error(invalid_argument) before anything is written, Error(unavailable |
// unsupported | device) for a GPU that cannot be used. Thread-safe.
void write_block_mask(const Tensor& lists, const Tensor& blocks, const Context& context = {});

}  // namespace attn
