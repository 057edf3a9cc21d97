#include "cpu/nonfinite.hpp"

#include <cstring>

#include "core/tensor/element.hpp"

namespace attn::cpu {
float operand_element(const Attention& a, const void* x, int step, int row) {
  const int rows = a.ops.rows;
  if (a.ops.operand == DType::f32) return static_cast<const float*>(x)[step * rows + row];
  const std::uint32_t pair = static_cast<const std::uint32_t*>(x)[step / 2 * rows + row];
  const std::uint32_t bits = step % 2 == 0 ? pair << 16 : pair & 0xffff0000u;  // low half first
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::uint64_t nonfinite_rows(const Attention& a, const core::Rows& rows, int head, int first,
                             int count, int dim) {
  const std::byte* row[kBlockK];
  for (int j = 0; j < count; ++j) row[j] = rows.row(first + j, head);
  return a.ops.nonfinite_rows(row, count, dim, a.problem.dtype);
}

std::uint64_t values_to_set_apart(const Attention& a, const core::Sequence& sequence, int head_k,
                                  expr::Coverage coverage, const KeyBlock& block) {
  if (!may_hide(a, coverage)) return 0;
  // The packed block is contiguous and about to be read; rows may be anywhere. The tables of bf16
  // operands pack whole numbers of 32 keys alike.
  const bool f32 = a.ops.operand == DType::f32;
  const int floats = block.keys * leading_dim(a.dim_v) / (f32 ? 1 : 2);
  if ((f32 || block.keys % 32 == 0) && a.ops.all_finite(block.v, floats)) return 0;
  return nonfinite_rows(a, sequence.v, head_k, block.key0, block.keys, a.dim_v);
}

void pack_values_without(const Attention& a, const core::Sequence& sequence, int head_k,
                         std::uint64_t apart, void* memory, KeyBlock& block) {
  const std::byte* row[kBlockK];
  for (int j = 0; j < block.keys; ++j) row[j] = sequence.v.row(block.key0 + j, head_k);
  for_each_bit(apart, block.keys, [&](int j) { row[j] = nullptr; });
  a.ops.pack_v(row, block.keys, a.dim_v, a.problem.dtype, memory);
  block.v = memory;
}

std::uint64_t set_apart_values(const Attention& a, const core::Sequence& sequence, int head_k,
                               expr::Coverage coverage, void* memory, KeyBlock& block) {
  const std::uint64_t apart = values_to_set_apart(a, sequence, head_k, coverage, block);
  if (apart != 0) pack_values_without(a, sequence, head_k, apart, memory, block);
  return apart;
}

void add_values_apart(const Attention& a, const core::Sequence& sequence, int head_k, int key0,
                      int keys, std::uint64_t apart, const OutputTile& tile) {
  for_each_bit(apart, keys, [&](int j) {
    float weight[kMaxRows];
    for (int r = 0; r < a.ops.rows; ++r) weight[r] = operand_element(a, tile.p, j, r);
    add_outer(a, weight, sequence.v.row(key0 + j, head_k), a.dim_v, tile.o_t);
  });
}

void add_outer(const Attention& a, const float* weight, const std::byte* y, int dim, float* x_t) {
  const auto size = static_cast<std::ptrdiff_t>(size_of(a.problem.dtype));
  for (int d = 0; d < dim; ++d) {
    const auto value = static_cast<float>(core::load_element(y + d * size, a.problem.dtype));
    for (int r = 0; r < a.ops.rows; ++r) {
      if (weight[r] != 0) x_t[d * a.ops.rows + r] += weight[r] * value;
    }
  }
}

}  // namespace attn::cpu
