// Where the rows of Q, K, V, O lie, for every layout. Inputs are checked before (validate.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/problem.hpp"
#include "attn/run.hpp"
#include "core/tensor/integers.hpp"

namespace attn::core {

// Rows of one sequence of a [.., seqlen, heads, head_dim] tensor. Strides are bytes.
struct Rows {
  std::byte* base = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  Integers pages{};  // of this sequence; none unless paged
  std::int64_t page_size = 0;
  std::int64_t page_stride = 0;
  std::int32_t page_count = 0;  // of the tensor, as far as a page table can tell pages apart
  // Rows of a shared prefix (Problem::seqlen_prefix) come first: row 3 of a sequence is row 1 of
  // its own where two are shared.
  std::int32_t prefix = 0;
  std::byte* prefix_base = nullptr;
  std::int64_t prefix_row_stride = 0;
  std::int64_t prefix_head_stride = 0;
  Integers prefix_pages{};  // of the same tensor; none unless paged

  std::byte* row(std::int64_t i, std::int64_t head) const {
    if (prefix == 0) return own_row(i, head);
    if (i >= prefix) return own_row(i - prefix, head);
    if (prefix_pages) return paged_row(prefix_pages, i, head);
    return prefix_base + i * prefix_row_stride + head * prefix_head_stride;
  }

  std::byte* own_row(std::int64_t i, std::int64_t head) const {
    if (pages) return paged_row(pages, i, head);
    return base + i * row_stride + head * head_stride;
  }

  std::byte* paged_row(const Integers& of, std::int64_t i, std::int64_t head) const {
    // An entry that is no page has no visible key (validate.hpp): page 0 stands in for it.
    const std::int64_t page = of[i / page_size];
    return base + (page >= 0 && page < page_count ? page : 0) * page_stride +
           (i % page_size) * row_stride + head * head_stride;
  }
};

// Rows of Q, in few bytes, as a call has a Sequence for each entry of its batch.
struct RowsOfQ {
  std::byte* base = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  RowsOfQ() = default;
  explicit RowsOfQ(const Rows& rows)
      : base(rows.base), row_stride(rows.row_stride), head_stride(rows.head_stride) {}
  operator Rows() const {  // NOLINT(google-explicit-constructor)
    return {.base = base, .row_stride = row_stride, .head_stride = head_stride};
  }
  std::byte* row(std::int64_t i, std::int64_t head) const {
    return base + i * row_stride + head * head_stride;
  }
};

// One sequence of the batch. Rows at or past length_q and length_k take no part in attention.
struct Sequence {
  std::int32_t batch = 0;
  // In use: what expressions call seqlen_q and seqlen_k. Keys of a shared prefix count.
  std::int32_t length_q = 0, length_k = 0;
  // Rows present, without a prefix; output rows from length_q on are zeroed.
  std::int64_t capacity_q = 0, capacity_k = 0;
  RowsOfQ q;
  Rows k, v;
};

// Of an empty batch there is one, 0, which has no keys and no queries.
Sequence sequence(const Problem& problem, const Inputs& inputs, std::int64_t batch);

// How many sequences the results are cleared by: at least one, since packed tensors of an empty
// batch have rows all the same. That one has the length 0 and all rows (sequence()).
inline std::int64_t cleared_sequences(const Problem& problem) {
  return problem.batch == 0 ? 1 : problem.batch;
}

// Rows of sequence `batch` of a tensor laid out as Q (O, dQ, dO) or as dense or packed K (V, dK,
// dV).
Rows rows_like_q(const Problem& problem, const Inputs& inputs, const Tensor& tensor,
                 std::int64_t batch);
Rows rows_like_k(const Problem& problem, const Inputs& inputs, const Tensor& tensor,
                 std::int64_t batch);

// Rows of K, or of V, of sequence `batch` of a tensor of scales laid out as K is, but for head_dim:
// one element a row and head. With a prefix its scales stand in the same pages.
Rows rows_of_scales(const Problem& problem, const Inputs& inputs, const Tensor& scale,
                    std::int64_t batch);

// Where a tensor laid out as LSE holds element (query, head) of sequence `batch`: row(query, head).
Rows lse_rows(const Problem& problem, const Inputs& inputs, const Tensor& lse, std::int64_t batch);

// The LSE of (batch, head), element i of it at pointer + i * stride (bytes).
struct LseRow {
  std::byte* base = nullptr;
  std::int64_t stride = 0;
};
LseRow lse_row(const Problem& problem, const Inputs& inputs, const Tensor& lse, std::int64_t batch,
               std::int64_t head);

}  // namespace attn::core
