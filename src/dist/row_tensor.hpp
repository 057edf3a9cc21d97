// Tensors that hold listed rows of a line, and moving rows between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "attn/tensor.hpp"
#include "dist/sides.hpp"

namespace attn::dist {

// Rows of K, V or a gradient of these: dense [batch, rows, heads, dim], packed [rows, heads, dim].
struct RowTensor {
  Tensor tensor{};
  RowList rows{};  // which rows of the line it has, in its order
};

// What K, V or scales of these have of a row and head. No elements: there is no such tensor.
struct RowShape {
  DType dtype = DType::f32;
  std::int64_t dim = 0;
};
struct KeyShapes {
  RowShape k{}, v{}, scale_k{}, scale_v{};
};

// Contiguous tensors of rows, in memory of their own.
class RowMemory {
 public:
  RowMemory() = default;
  // `sequences`: the batch where the layout is dense, 0 where it is packed.
  RowMemory(std::int64_t sequences, const RowList& rows, std::int64_t heads,
            const KeyShapes& shapes);

  RowTensor k{}, v{}, scale_k{}, scale_v{};  // scales with a last dimension of 1
  // All of these, one behind the other, k before v where their elements are as wide: what is sent.
  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  void clear();

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_ = 0;
};

// Copies the rows that both have, of one dtype.
void copy_rows(const RowTensor& from, const RowTensor& to);
// The same of K, V and scales.
void copy_keys(const RowMemory& from, const RowMemory& to);
// to += from in f32, or in f64, of the rows that both have.
void add_rows(const RowTensor& from, const RowTensor& to);
// Copies all rows of `from`, which `to` has in the same places, in its own floating dtype.
void convert_rows(const RowTensor& from, const Tensor& to);

}  // namespace attn::dist
