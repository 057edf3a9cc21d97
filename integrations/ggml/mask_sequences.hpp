// A mask with holes as sequences of a paged cache. Where several sequences share the places of a
// cache, as in llama.cpp's unified one, rows see keys that lie apart, but rows of one sequence see
// the same ones and one more from row to row.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attn/tensor.hpp"

namespace attn_ggml {

// In attn's terms: packed rows, pages of one key, the causal mask.
struct MaskSequences {
  std::vector<std::int32_t> starts{0};  // [sequences + 1]: cu_seqlens_q
  std::vector<std::int32_t> lengths;    // [sequences]: seqused_k
  std::vector<std::int32_t> keys;       // [sequences, width]: page_table, -1 past a length
  std::int64_t width = 0;               // a multiple of 256, so that few plans serve many steps
};

// mask: f16 [1, 1, rows, keys] as of read_mask(). Nothing where a visible number is not zero, or
// where so many rows have keys of their own that adding the mask to the scores is faster.
// Thread-safe.
std::optional<MaskSequences> read_sequences(const attn::Tensor& mask);

}  // namespace attn_ggml
