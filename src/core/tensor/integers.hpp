// Lengths, starts of sequences, pages and lists of keys as the caller has them: int32 or int64.
#pragma once

#include <cstdint>

#include "attn/tensor.hpp"

namespace attn::core {

inline bool is_integer(DType dtype) noexcept { return dtype == DType::i32 || dtype == DType::i64; }

// Numbers one after the other in memory of the CPU, read as int64, so that no number is cut off
// before it is compared with what is accepted. False where there are none.
class Integers {
 public:
  Integers() = default;
  // t: i32 or i64, of which the last dimension is contiguous, or null.
  explicit Integers(const Tensor& t) noexcept : data_(t.data), wide_(t.dtype == DType::i64) {}

  explicit operator bool() const noexcept { return data_ != nullptr; }
  std::int64_t operator[](std::int64_t i) const noexcept {
    return wide_ ? static_cast<const std::int64_t*>(data_)[i]
                 : static_cast<const std::int32_t*>(data_)[i];
  }
  // Those from number `first` on.
  Integers from(std::int64_t first) const noexcept {
    Integers rest = *this;
    rest.data_ = wide_ ? static_cast<const void*>(static_cast<const std::int64_t*>(data_) + first)
                       : static_cast<const std::int32_t*>(data_) + first;
    return rest;
  }

 private:
  const void* data_ = nullptr;
  bool wide_ = false;
};

}  // namespace attn::core
