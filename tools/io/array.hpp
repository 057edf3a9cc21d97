// Tensors that own their memory.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "attn/tensor.hpp"

namespace attn::io {

// Row-major, on the host, aligned to a cache line; not initialised. Move-only.
class Array {
 public:
  Array() = default;  // tensor() is "not given"
  // Rank 1 to kMaxRank. Throws Error(invalid_argument) for another rank, a negative dimension or a
  // size past 2^63 - 1 bytes; Error(out_of_memory).
  Array(DType dtype, std::span<const std::int64_t> shape);

  const Tensor& tensor() const noexcept { return tensor_; }
  std::byte* data() const noexcept { return memory_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, kAlignment); }
  };

  std::unique_ptr<std::byte[], Delete> memory_;
  std::size_t bytes_ = 0;
  Tensor tensor_;
};

// Bytes of a row-major tensor, or nothing when a dimension is negative or the size or a stride
// passes 2^63 - 1. A dimension of 0 counts as 1 here, so that strides fit as well.
bool fits(std::span<const std::int64_t> shape, std::size_t element_bytes) noexcept;

// Copy of any strided host tensor, row-major, converted through float (double if either side is
// f64) between floating types. Throws Error(invalid_argument) when the types differ and one is an
// integer.
Array convert(const Tensor& tensor, DType dtype);

}  // namespace attn::io
