// Conditions of rows in tables of tile shapes: what a shape was chosen for, beside the head size.
#pragma once

#include <cstdint>

#include "attn/problem.hpp"

namespace attn::cuda {

enum class Condition : std::uint8_t {
  always,
  // The mask reads a buffer at query / B, as a block-sparse mask does, and tiles of 128 rows divide
  // these rows of blocks where tiles of 192 do not: B is a multiple of 128 and not of 3.
  block_rows_of_128,
  // The mask reads a buffer at key / B, as a block-sparse mask does, and B is a multiple of 64 and
  // not of 128, so that tiles of 128 keys have blocks that are seen beside others that are not.
  key_blocks_of_64,
  // 4096 queries and keys or more, 8192 under a mask at head sizes above 96; not paged, no dropout;
  // no mask but a last key for each row, as a causal one says; no score.
  long_and_plain,
  // The same from 4096 on at any head size, for tiles that have a place for the next Q.
  plain_from_4096,
  // 4096 or more, and the same otherwise, with a score that loads nothing for each element.
  long_with_score,
  // The score loads an element for each query and key, as a bias does.
  score_of_elements,
  // head_dim_v is at most 128.
  narrow_values,
  // There are so few keys that the last block counts: up to 576, nine blocks of 64.
  few_keys,
  // There are as few, under a mask: tiles have a few blocks.
  few_masked_keys,
};

// problem is complete and valid.
bool holds(Condition condition, const Problem& problem);

}  // namespace attn::cuda
