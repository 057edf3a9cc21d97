// Rows of the tensors of a case by sequence, wherever they lie.
#pragma once

#include <cstdint>
#include <functional>

#include "verify/data.hpp"

namespace attn::cuda {

inline std::int32_t number(const Tensor& t, std::int64_t i) {
  return static_cast<const std::int32_t*>(t.data)[i];
}

// Rows of a tensor that belong to sequence b, from its first on.
struct Rows {
  const verify::CaseData& data;
  bool like_q;
  std::int64_t b;

  const Tensor& cu() const { return like_q ? data.inputs.cu_seqlens_q : data.inputs.cu_seqlens_k; }
  std::int64_t count() const {
    if (cu().given()) return number(cu(), b + 1) - number(cu(), b);
    return like_q ? data.problem.seqlen_q : data.problem.seqlen_k;
  }
  std::int64_t in_use() const {
    const Tensor& used = like_q ? data.inputs.seqused_q : data.inputs.seqused_k;
    return used.given() ? number(used, b) : count();
  }
  // Offset in elements of a row of Q, K, V or O.
  std::int64_t offset(const Tensor& t, std::int64_t row) const {
    if (cu().given()) return (number(cu(), b) + row) * t.strides[0];
    if (!like_q && data.inputs.page_table.given()) {
      const Tensor& table = data.inputs.page_table;
      const std::int64_t size = data.problem.page_size;
      return number(table, b * table.strides[0] + row / size) * t.strides[0] +
             row % size * t.strides[1];
    }
    return b * t.strides[0] + row * t.strides[1];
  }
  std::int64_t element(const Tensor& t, std::int64_t row, std::int64_t head,
                       std::int64_t column) const {
    return offset(t, row) + head * t.strides[static_cast<std::size_t>(t.rank) - 2] + column;
  }
  // Of a row of LSE.
  std::int64_t lse(const Tensor& t, std::int64_t row, std::int64_t head) const {
    if (cu().given()) return head * t.strides[0] + (number(cu(), b) + row) * t.strides[1];
    return b * t.strides[0] + head * t.strides[1] + row * t.strides[2];
  }
};

// Every element x of rows [first, last) of a head's row becomes f(x).
inline void change(const Tensor& t, const Rows& rows, std::int64_t first, std::int64_t last,
                   std::int64_t head, const std::function<double(double)>& f) {
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t i = 0; i < t.shape[static_cast<std::size_t>(t.rank) - 1]; ++i) {
      const std::int64_t at = rows.element(t, row, head, i);
      verify::store_element(t, at, f(verify::load_element(t, at)));
    }
  }
}

}  // namespace attn::cuda
