#include "core/expr/bindings.hpp"

#include <fmt/format.h>

#include "attn/error.hpp"
#include "core/expr/build.hpp"

namespace attn::expr {
namespace {

[[noreturn]] void refuse(const Buffer& buffer, const std::string& reason) {
  throw Error(ErrorCode::invalid_argument, fmt::format("buffer '{}': {}", buffer.name(), reason));
}

}  // namespace

const Tensor& resolve(const Buffer& buffer, const Bindings& bindings, DeviceType device) {
  const Tensor* tensor = &buffer.tensor();
  for (const auto& [name, bound] : bindings) {
    if (name == buffer.name()) tensor = &bound;
  }
  if (is_scalar(buffer)) device = DeviceType::cpu;
  if (tensor->device.type != device) {
    refuse(buffer,
           fmt::format("tensor {} bound; a tensor on {} is accepted", attn::to_string(*tensor),
                       device == DeviceType::cpu ? "the CPU" : "a CUDA device"));
  }
  if (tensor != &buffer.tensor()) {
    const bool loads_alike = is_floating(buffer.tensor().dtype)
                                 ? tensor->dtype == DType::f32 || tensor->dtype == DType::bf16 ||
                                       tensor->dtype == DType::f16
                                 : tensor->dtype == DType::i32 || tensor->dtype == DType::u8;
    if (tensor->rank != buffer.tensor().rank || !loads_alike) {
      refuse(buffer,
             fmt::format("tensor {} bound; accepted is rank {} and dtype {}",
                         attn::to_string(*tensor), buffer.tensor().rank,
                         is_floating(buffer.tensor().dtype) ? "f32, bf16 or f16" : "i32 or u8"));
    }
  }
  if (tensor->data == nullptr && tensor->size() != 0) {
    refuse(buffer, "no data; bind a tensor to this name when the problem runs");
  }
  return *tensor;
}

}  // namespace attn::expr
