#include "core/problem/rows.hpp"

#include <algorithm>
#include <limits>

namespace attn::core {
namespace {

std::int64_t element_bytes(const Tensor& t) { return static_cast<std::int64_t>(size_of(t.dtype)); }

// Address of the element `offset` elements from the first. An empty tensor may have no memory at
// all.
std::byte* address(const Tensor& t, std::int64_t offset) {
  return t.data == nullptr ? nullptr : static_cast<std::byte*>(t.data) + offset * element_bytes(t);
}

// t: [batch, seqlen, heads, dim], or with cu_seqlens [total, heads, dim].
Rows rows_of(const Tensor& t, const Integers& cu_seqlens, std::int64_t batch) {
  const std::int64_t bytes = element_bytes(t);
  if (cu_seqlens) {
    return {.base = address(t, cu_seqlens[batch] * t.strides[0]),
            .row_stride = t.strides[0] * bytes,
            .head_stride = t.strides[1] * bytes};
  }
  return {.base = address(t, batch * t.strides[0]),
          .row_stride = t.strides[1] * bytes,
          .head_stride = t.strides[2] * bytes};
}

Integers cu_seqlens(Layout layout, const Tensor& t) {
  return layout == Layout::packed ? Integers(t) : Integers();
}

// t: [pages, page_size, heads, dim]
Rows paged_rows(const Problem& problem, const Inputs& inputs, const Tensor& t, std::int64_t batch) {
  const std::int64_t bytes = element_bytes(t);
  const Tensor& table = inputs.page_table;
  return {
      .base = address(t, 0),
      .row_stride = t.strides[1] * bytes,
      .head_stride = t.strides[2] * bytes,
      .pages = table.data == nullptr ? Integers() : Integers(table).from(batch * table.strides[0]),
      .page_size = problem.page_size,
      .page_stride = t.strides[0] * bytes,
      .page_count = static_cast<std::int32_t>(
          std::min<std::int64_t>(t.shape[0], std::numeric_limits<std::int32_t>::max()))};
}

// Puts the shared prefix before the rows of K, or of V.
void add_prefix(const Problem& problem, const Inputs& inputs, const Tensor& t, Rows& rows) {
  rows.prefix = static_cast<std::int32_t>(problem.seqlen_prefix);
  if (problem.paged_prefix) {
    rows.prefix_pages = Integers(inputs.prefix_page_table);
    return;
  }
  rows.prefix_base = address(t, 0);
  rows.prefix_row_stride = t.strides[0] * element_bytes(t);
  rows.prefix_head_stride = t.strides[1] * element_bytes(t);
}

std::int64_t capacity(const Integers& starts, std::int64_t seqlen, std::int64_t batch) {
  return starts ? starts[batch + 1] - starts[batch] : seqlen;
}

std::int32_t length(const Tensor& seqused, std::int64_t capacity, std::int64_t batch) {
  return static_cast<std::int32_t>(seqused.given() ? Integers(seqused)[batch] : capacity);
}

}  // namespace

Sequence sequence(const Problem& problem, const Inputs& inputs, std::int64_t batch) {
  Sequence s;
  s.batch = static_cast<std::int32_t>(batch);
  if (batch < problem.batch) {
    s.capacity_q =
        capacity(cu_seqlens(problem.layout_q, inputs.cu_seqlens_q), problem.seqlen_q, batch);
    s.capacity_k =
        capacity(cu_seqlens(problem.layout_k, inputs.cu_seqlens_k), problem.seqlen_k, batch);
    s.length_q = length(inputs.seqused_q, s.capacity_q, batch);
    s.length_k = length(inputs.seqused_k, s.capacity_k, batch);
  }
  // Rows of a packed tensor behind all sequences are unused rows of the last one.
  if (batch + 1 >= problem.batch) {
    if (problem.layout_q == Layout::packed) {
      s.capacity_q = inputs.q.shape[0] - Integers(inputs.cu_seqlens_q)[batch];
    }
    if (problem.layout_k == Layout::packed) {
      s.capacity_k = inputs.k.shape[0] - Integers(inputs.cu_seqlens_k)[batch];
    }
  }
  s.q = RowsOfQ(rows_like_q(problem, inputs, inputs.q, batch));
  if (problem.layout_k == Layout::paged) {
    s.k = paged_rows(problem, inputs, inputs.k, batch);
    s.v = paged_rows(problem, inputs, inputs.v, batch);
  } else {
    s.k = rows_like_k(problem, inputs, inputs.k, batch);
    s.v = rows_like_k(problem, inputs, inputs.v, batch);
  }
  if (problem.seqlen_prefix > 0) {
    if (batch < problem.batch) s.length_k += static_cast<std::int32_t>(problem.seqlen_prefix);
    add_prefix(problem, inputs, inputs.prefix_k, s.k);
    add_prefix(problem, inputs, inputs.prefix_v, s.v);
  }
  return s;
}

Rows rows_like_q(const Problem& problem, const Inputs& inputs, const Tensor& tensor,
                 std::int64_t batch) {
  return rows_of(tensor, cu_seqlens(problem.layout_q, inputs.cu_seqlens_q), batch);
}

Rows rows_like_k(const Problem& problem, const Inputs& inputs, const Tensor& tensor,
                 std::int64_t batch) {
  return rows_of(tensor, cu_seqlens(problem.layout_k, inputs.cu_seqlens_k), batch);
}

Rows rows_of_scales(const Problem& problem, const Inputs& inputs, const Tensor& scale,
                    std::int64_t batch) {
  if (problem.layout_k != Layout::paged) return rows_like_k(problem, inputs, scale, batch);
  Rows rows = paged_rows(problem, inputs, scale, batch);
  if (problem.seqlen_prefix > 0) add_prefix(problem, inputs, scale, rows);
  return rows;
}

Rows lse_rows(const Problem& problem, const Inputs& inputs, const Tensor& lse, std::int64_t batch) {
  const std::int64_t bytes = element_bytes(lse);
  if (problem.layout_q == Layout::packed) {  // [heads_q, total_q]
    return {.base = address(lse, Integers(inputs.cu_seqlens_q)[batch] * lse.strides[1]),
            .row_stride = lse.strides[1] * bytes,
            .head_stride = lse.strides[0] * bytes};
  }
  return {.base = address(lse, batch * lse.strides[0]),
          .row_stride = lse.strides[2] * bytes,
          .head_stride = lse.strides[1] * bytes};
}

LseRow lse_row(const Problem& problem, const Inputs& inputs, const Tensor& lse, std::int64_t batch,
               std::int64_t head) {
  const Rows rows = lse_rows(problem, inputs, lse, batch);
  return {.base = rows.row(0, head), .stride = rows.row_stride};
}

}  // namespace attn::core
