#include "cpu/nonfinite.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/cached_rows.hpp"

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

bool has_finite_output(const Attention& a, const QueryBlock& q) {
  const auto* const o = reinterpret_cast<const std::byte*>(q.o_t);
  return a.ops.nonfinite_rows(&o, 1, a.dim_v * a.ops.rows, CacheType::f32) == 0;
}

bool has_infinite_score(const Attention& a, const QueryBlock& q, const KeyBlock& block,
                        const TileScratch& t) {
  const ScoreTile scores{q.q_t, t.s, nullptr};
  a.ops.scores(&scores, 1, block.k, block.keys, a.dim);
  return std::count(t.s, t.s + block.keys * a.ops.rows, -std::numeric_limits<float>::infinity()) >
         0;
}

std::uint64_t nonfinite_values(const Attention& a, const core::Sequence& sequence, int head_k,
                               int first, int count) {
  const std::byte* row[kBlockK] = {};
  float scale[kBlockK];
  for (int j = 0; j < count; ++j) row[j] = sequence.v.row(first + j, head_k);
  std::uint64_t rows = a.ops.nonfinite_rows(row, count, a.dim_v, a.type_v);
  if (a.scales(a.inputs.scale_v, sequence, head_k, first, count, scale) != nullptr) {
    for (int j = 0; j < count; ++j) rows |= std::uint64_t{!std::isfinite(scale[j])} << j;
  }
  return rows;
}

std::uint64_t values_to_set_apart(const Attention& a, const core::Sequence& sequence, int head_k,
                                  const KeyBlock& block) {
  // The packed block is contiguous and about to be read; rows may be anywhere. The tables of bf16
  // operands pack whole numbers of 32 keys alike.
  const bool f32 = a.ops.operand == DType::f32;
  const int floats = block.keys * leading_dim(a.dim_v) / (f32 ? 1 : 2);
  if ((f32 || block.keys % 32 == 0) && a.ops.all_finite(block.v, floats)) return 0;
  return nonfinite_values(a, sequence, head_k, block.key0, block.keys);
}

void pack_values_without(const Attention& a, const core::Sequence& sequence, int head_k,
                         std::uint64_t apart, void* memory, KeyBlock& block) {
  const std::byte* row[kBlockK];
  for (int j = 0; j < block.keys; ++j) row[j] = sequence.v.row(block.key0 + j, head_k);
  for_each_bit(apart, block.keys, [&](int j) { row[j] = nullptr; });
  float scale[kBlockK];
  a.ops.pack_v(row, block.keys, a.dim_v, a.type_v,
               a.scales(a.inputs.scale_v, sequence, head_k, block.key0, block.keys, scale), memory);
  block.v = memory;
}

std::uint64_t set_apart_values(const Attention& a, const core::Sequence& sequence, int head_k,
                               void* memory, KeyBlock& block) {
  const std::uint64_t apart = values_to_set_apart(a, sequence, head_k, block);
  if (apart != 0) pack_values_without(a, sequence, head_k, apart, memory, block);
  return apart;
}

void add_values_apart(const Attention& a, const core::Sequence& sequence, int head_k, int key0,
                      int keys, std::uint64_t apart, const OutputTile& tile) {
  for_each_bit(apart, keys, [&](int j) {
    float weight[kMaxRows], scale[1];
    for (int r = 0; r < a.ops.rows; ++r) weight[r] = operand_element(a, tile.p, j, r);
    a.scales(a.inputs.scale_v, sequence, head_k, key0 + j, 1, scale);
    add_outer(a, weight, sequence.v.row(key0 + j, head_k), a.dim_v, a.type_v,
              a.inputs.scale_v.given() ? scale[0] : 1.0f, tile.o_t);
  });
}

void add_outer(const Attention& a, const float* weight, const std::byte* y, int dim, CacheType type,
               float scale, float* x_t) {
  for (int d = 0; d < dim; ++d) {
    const float value = scale * static_cast<float>(core::cached_element(y, d, type));
    for (int r = 0; r < a.ops.rows; ++r) {
      if (weight[r] != 0) x_t[d * a.ops.rows + r] += weight[r] * value;
    }
  }
}

}  // namespace attn::cpu
