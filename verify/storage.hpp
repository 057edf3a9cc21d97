// Owned memory for the tensors of a test case, placed with gaps, broadcasts or far apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "attn/tensor.hpp"

namespace attn::verify {

using Random = std::mt19937_64;

// How a tensor lies in its memory. The last dimension is innermost and contiguous, but in loose
// ones.
struct Placement {
  bool strided = false;    // outer axes in random order, random gaps, first element off alignment
  bool headmajor = false;  // the second last axis outside the third last
  bool far = false;        // rows so far apart that offsets pass 2^31 elements
  bool broadcast = false;  // stride 0 for all axes but the rows' (third last) and the last
  // As strided, and more: the last dimension anywhere and apart too, some axes backwards. Of
  // tensors all of whose strides are free: LSE, gradients of sinks and buffers.
  bool loose = false;
};

// NaN in every floating dtype.
inline constexpr std::byte kPoison{0xff};

// Memory of one tensor. Every byte starts as 0xff, which is NaN in all floating dtypes and -1 in
// i32; far ones start as 0.
class Storage {
 public:
  Storage(DType dtype, const std::vector<std::int64_t>& shape, const Placement& placement,
          Random& random);

  const Tensor& tensor() const noexcept { return tensor_; }
  // Fills with 0xff again. Far storage: only the elements.
  void poison();
  // Whether a byte that belongs to no element of the tensor is not 0xff any more. Far storage has
  // none such.
  bool overwritten() const;
  // A checksum of all bytes (far storage: of the elements).
  std::uint64_t checksum() const;

  // The whole memory, and the ranges of it (begin, end) that a copy must hold: all of it; of far
  // storage the rows.
  std::byte* bytes() const noexcept { return bytes_.get(); }
  std::size_t size() const noexcept { return size_; }
  std::vector<std::pair<std::size_t, std::size_t>> contents() const;

 private:
  void find_gaps() const;
  template <class F>
  void for_each_element(F&& f) const;  // f(byte offset)

  std::shared_ptr<std::byte> bytes_;
  std::size_t size_ = 0;
  std::int64_t first_ = 0;  // offset of element 0, bytes
  bool far_ = false;
  Tensor tensor_;
  // Ranges of bytes that belong to no element; found when first asked for. Never empty then: there
  // are guards.
  mutable std::vector<std::pair<std::size_t, std::size_t>> gaps_;
};

// Writes a floating value (or a whole number) to an element; offset in elements.
void store_element(const Tensor& tensor, std::int64_t offset, double value);
double load_element(const Tensor& tensor, std::int64_t offset);

}  // namespace attn::verify
