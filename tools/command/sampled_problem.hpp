// Some rows of a problem as a problem of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/run.hpp"
#include "core/problem/rows.hpp"
#include "io/array.hpp"
#include "reference/reference.hpp"

namespace attn::command {

// The query heads of one KV head of one sequence, at some of its queries.
struct RowSample {
  std::int64_t batch = 0, head_k = 0;
  std::vector<std::int32_t> rows;  // each below the length of the sequence
};

// Every row of O depends on its own query and on all keys, whatever their order, so a problem of
// the sampled queries and all keys of the sequence gives exactly those rows of the whole. Mask and
// score keep their meaning because their symbols are replaced: query and key by loads of their
// original positions, batch, head and seqlen_q by their original values. Dropout has no such
// symbols: the reference is told the places of its bits.
class SampledProblem {
 public:
  // `whole` is complete, `inputs` valid. Copies the rows, which are dense and row-major then.
  // `key_order`: 0 keeps the order of the keys, other numbers shuffle it, each in its own way; sums
  // are then rounded differently.
  SampledProblem(const Problem& whole, const Inputs& inputs, const RowSample& sample,
                 std::uint64_t key_order = 0);

  const Problem& problem() const noexcept { return problem_; }
  const Inputs& inputs() const noexcept { return inputs_; }
  reference::DropoutPlaces dropout_places() const;  // in the whole; lives as long as this
  const RowSample& sample() const noexcept { return sample_; }
  std::int64_t group() const noexcept { return problem_.heads_q; }

  // The rows of tensors laid out as the whole Q, K and LSE that belong to this problem:
  // [1, rows, group, dim], [1, keys, 1, dim] (in this problem's order) and [1, group, rows].
  io::Array queries(const Tensor& like_q) const;
  io::Array keys(const Tensor& like_k) const;
  io::Array lse(const Tensor& lse) const;
  // The other way: writes [1, rows, group, dim] to the rows of a tensor laid out as the whole Q.
  void store_queries(const io::Array& from, const Tensor& like_q) const;

 private:
  io::Array key_list() const;
  io::Array gather_keys(const core::Rows& rows, const Tensor& tensor) const;
  io::Array query_scales() const;                      // [1, rows, group]
  io::Array gather_scales(const Tensor& scale) const;  // [1, keys, 1]
  template <class Copy>
  void for_each_query(const core::Rows& rows, const io::Array& array, const Copy& copy) const;

  const Problem& whole_;
  const Inputs& whole_inputs_;
  RowSample sample_;
  core::Sequence sequence_;
  Problem problem_;
  Inputs inputs_;
  io::Array q_, k_, v_, key_list_, query_positions_,
      key_positions_;  // positions: i32, in the whole
  io::Array scale_q_, scale_k_, scale_v_;
  io::Array constants_;  // i32: batch and seqlen_q of the whole
};

}  // namespace attn::command
