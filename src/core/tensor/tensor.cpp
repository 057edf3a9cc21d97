// Views of memory: their sizes, strides and text.
#include "attn/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "attn/error.hpp"

namespace attn {

std::int64_t Tensor::size() const noexcept {
  std::int64_t n = 1;
  for (std::int32_t k = 0; k < rank; ++k) n *= shape[k];
  return n;
}

bool Tensor::contiguous() const noexcept {
  bool in_order = true;
  std::int64_t elements = 1;  // of the dimensions so far
  for (std::int32_t k = rank - 1; k >= 0; --k) {
    in_order = in_order && (shape[k] == 1 || strides[k] == elements);
    elements *= shape[k];
  }
  return in_order || elements == 0;
}

std::int64_t Tensor::offset(std::initializer_list<std::int64_t> index) const noexcept {
  std::int64_t sum = 0;
  std::size_t k = 0;
  for (const std::int64_t i : index) sum += i * strides[k++];
  return sum;
}

Tensor transposed(const Tensor& t) {
  if (t.rank < 2) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor to transpose is {}; accepted are two dimensions and more",
                            to_string(t)));
  }
  Tensor out = t;
  const auto last = static_cast<std::size_t>(t.rank - 1);
  std::swap(out.shape[last], out.shape[last - 1]);
  std::swap(out.strides[last], out.strides[last - 1]);
  return out;
}

Tensor tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device) {
  const auto sizes = fmt::format("[{}]", fmt::join(shape, ", "));
  if (shape.size() > kMaxRank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shape {} has rank {}; accepted are ranks 0 to {}", sizes, shape.size(),
                            kMaxRank));
  }
  Tensor t{.data = data, .dtype = dtype, .device = device};
  t.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape.begin());
  std::int64_t stride = 1;
  for (std::int32_t k = t.rank - 1; k >= 0; --k) {
    t.strides[k] = stride;
    // An empty dimension counts as one, so that strides never become 0.
    if (t.shape[k] < 0 ||
        __builtin_mul_overflow(stride, std::max<std::int64_t>(1, t.shape[k]), &stride)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("shape {} is negative or too large; accepted are sizes of at least 0 "
                              "whose product is below 2^63",
                              sizes));
    }
  }
  return t;
}

Tensor tensor(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
              Device device) {
  // Inputs are never written, so one Tensor type serves both.
  return tensor(const_cast<void*>(data), dtype, shape, device);
}

std::string to_string(Device device) {
  switch (device.type) {
    case DeviceType::cpu:
      return device.index == 0 ? "cpu" : fmt::format("cpu:{}", device.index);
    case DeviceType::cuda:
      return fmt::format("cuda:{}", device.index);
  }
  return fmt::format("device type {}, which is unknown", static_cast<int>(device.type));
}

std::string to_string(const Tensor& tensor) {
  if (!tensor.given()) return "no tensor";
  // A malformed rank must still print.
  const auto rank = static_cast<std::size_t>(std::clamp(tensor.rank, 0, kMaxRank));
  const std::span shape(tensor.shape.data(), rank);
  const std::span strides(tensor.strides.data(), rank);
  return fmt::format("{}[{}] strides ({}) on {}", name(tensor.dtype), fmt::join(shape, ", "),
                     fmt::join(strides, ", "), to_string(tensor.device));
}

}  // namespace attn
