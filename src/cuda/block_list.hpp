// Lists of blocks of keys as a byte for each block.
#pragma once

#include "attn/context.hpp"
#include "attn/tensor.hpp"
#include "cuda/codegen/source.hpp"

namespace attn::cuda {

// attn::write_block_mask on a GPU, with tensors that were checked: puts it into context.stream.
// Throws Error(unavailable | unsupported | device).
void write_block_mask(const Tensor& lists, const Tensor& blocks, const Context& context);

// Its kernel. wide: lists of int64.
Source block_list_source(bool wide);

}  // namespace attn::cuda
