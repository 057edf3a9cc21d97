#include "io/array.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "attn/error.hpp"

namespace attn::io {
namespace {

Tensor row_major(void* data, DType dtype, std::span<const std::int64_t> shape) {
  Tensor tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    tensor.shape[d] = shape[d];
    tensor.strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  return tensor;
}

// Calls body(source, destination) for each element, in row-major order of the destination.
template <class Body>
void for_each_element(const Tensor& source, const Tensor& destination, const Body& body) {
  const std::size_t step = size_of(source.dtype);
  const auto* from = static_cast<const std::byte*>(source.data);
  auto* to = static_cast<std::byte*>(destination.data);
  std::array<std::int64_t, kMaxRank> index{};
  const std::int64_t count = destination.size();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t offset = 0;
    for (std::int32_t d = 0; d < source.rank; ++d) {
      offset += index[static_cast<std::size_t>(d)] * source.strides[static_cast<std::size_t>(d)];
    }
    body(from + offset * static_cast<std::int64_t>(step), to);
    to += size_of(destination.dtype);
    for (std::int32_t d = source.rank; d-- > 0;) {
      const auto u = static_cast<std::size_t>(d);
      if (++index[u] < source.shape[u]) break;
      index[u] = 0;
    }
  }
}

template <class Body>
void with_floating_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f64:
      return body(double{});
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(bfloat16{});
    case DType::f16:
      return body(float16{});
    default:
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("dtype is {}, but only f64, f32, bf16 and f16 convert", name(dtype)));
  }
}

template <class To, class From>
To convert_element(From value) {
  if constexpr (std::is_same_v<To, double>) {
    if constexpr (std::is_same_v<From, double>) return value;
    return static_cast<double>(static_cast<float>(value));
  } else {
    return To(static_cast<float>(value));
  }
}

}  // namespace

bool fits(std::span<const std::int64_t> shape, std::size_t element_bytes) noexcept {
  auto bytes = static_cast<std::int64_t>(element_bytes);
  return std::all_of(shape.begin(), shape.end(), [&](std::int64_t dimension) {
    return dimension >= 0 &&
           !__builtin_mul_overflow(bytes, std::max<std::int64_t>(dimension, 1), &bytes);
  });
}

Array::Array(DType dtype, std::span<const std::int64_t> shape) {
  if (shape.empty() || shape.size() > kMaxRank || !fits(shape, size_of(dtype))) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shape is [{}], but rank 1 to {}, no negative dimension and at most "
                            "2^63 - 1 bytes are accepted",
                            fmt::join(shape, ", "), kMaxRank));
  }
  bytes_ = size_of(dtype);
  for (const std::int64_t dimension : shape) bytes_ *= static_cast<std::size_t>(dimension);
  void* memory = ::operator new[](std::max<std::size_t>(bytes_, 1), kAlignment, std::nothrow);
  if (memory == nullptr) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("a tensor of shape [{}] needs {} bytes, which could not be allocated",
                            fmt::join(shape, ", "), bytes_));
  }
  memory_.reset(static_cast<std::byte*>(memory));
  tensor_ = row_major(memory, dtype, shape);
}

Array convert(const Tensor& tensor, DType dtype) {
  Array result(dtype, {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)});
  if (tensor.dtype == dtype) {
    if (tensor.contiguous()) {
      if (result.bytes() != 0) std::memcpy(result.data(), tensor.data, result.bytes());
      return result;
    }
    const std::size_t bytes = size_of(dtype);
    for_each_element(tensor, result.tensor(), [bytes](const std::byte* from, std::byte* to) {
      std::memcpy(to, from, bytes);
    });
    return result;
  }
  with_floating_type(tensor.dtype, [&]<class From>(From) {
    with_floating_type(dtype, [&]<class To>(To) {
      for_each_element(tensor, result.tensor(), [](const std::byte* from, std::byte* to) {
        From value;
        std::memcpy(&value, from, sizeof value);
        const To converted = convert_element<To>(value);
        std::memcpy(to, &converted, sizeof converted);
      });
    });
  });
  return result;
}

}  // namespace attn::io
