// Which memory a load reads, and how its elements are converted.
#pragma once

#include <cstdint>

#include "attn/expr.hpp"

namespace attn::expr {

// The tensor bound to the buffer's name, else the buffer's own. Throws Error(invalid_argument) when
// neither has data, or when it is on another kind of device (scalars are on the CPU always), of
// another rank, or of a dtype that loads as another type.
const Tensor& resolve(const Buffer& buffer, const Bindings& bindings,
                      DeviceType device = DeviceType::cpu);

// Element `offset` (in elements) as float32, of f32, bf16 or f16, or as int32, of i32 or u8.
inline float read_float(const Tensor& tensor, std::int64_t offset) noexcept {
  switch (tensor.dtype) {
    case DType::bf16:
      return static_cast<float>(static_cast<const bfloat16*>(tensor.data)[offset]);
    case DType::f16:
      return static_cast<float>(static_cast<const float16*>(tensor.data)[offset]);
    case DType::f32:
    case DType::f64:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      break;
  }
  return static_cast<const float*>(tensor.data)[offset];
}
inline std::int32_t read_int(const Tensor& tensor, std::int64_t offset) noexcept {
  return tensor.dtype == DType::u8 ? static_cast<const std::uint8_t*>(tensor.data)[offset]
                                   : static_cast<const std::int32_t*>(tensor.data)[offset];
}

}  // namespace attn::expr
