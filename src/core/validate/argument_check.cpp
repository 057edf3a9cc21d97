#include "core/validate/argument_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory_resource>
#include <vector>

#include "attn/error.hpp"
#include "core/tensor/integers.hpp"
#include "core/tensor/overlap.hpp"
#include "core/text/echo.hpp"

namespace attn::core {
namespace {

// Far above any memory and far below 2^63, so that sums and differences of two offsets cannot
// overflow.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 60;  // bytes

// Whether sizes and strides are from 0 to 2^15 - 1, so that none of the products below can be too
// large: what a tiny call can be told at once.
bool small(const Tensor& t) {
  std::uint64_t all = 0;  // a negative number has high bits
  for (std::int32_t k = 0; k < t.rank; ++k) {
    all |= static_cast<std::uint64_t>(t.shape[k]) | static_cast<std::uint64_t>(t.strides[k]);
  }
  return all < (std::uint64_t{1} << 15);
}

bool addressable(const Tensor& t, std::int64_t size) {  // size: of an element
  std::int64_t elements = 1;
  std::int64_t extent = size;
  for (std::int32_t k = 0; k < t.rank; ++k) {
    if (__builtin_mul_overflow(elements, t.shape[k], &elements)) return false;
    std::int64_t reach = 0;  // bytes between the first and the last element of this dimension
    if (__builtin_mul_overflow(std::max<std::int64_t>(0, t.shape[k] - 1), t.strides[k], &reach) ||
        __builtin_mul_overflow(reach, size, &reach) || reach > kMaxExtent || reach < -kMaxExtent) {
      return false;
    }
    extent += std::abs(reach);
  }
  return extent <= kMaxExtent && elements <= kMaxExtent;
}

std::string shape_text(std::string_view dtypes, const Shape& shape) {
  std::string sizes;
  for (const std::int64_t size : shape) {
    if (!sizes.empty()) sizes += ", ";
    sizes += size == kAnySize ? "any" : fmt::format("{}", size);
  }
  return fmt::format("{}[{}]", dtypes, sizes);
}

// Empty while sizes are missing.
std::string descriptor(const Problem& p) {
  if (p.heads_q <= 0 || p.heads_k <= 0 || p.head_dim <= 0 || p.head_dim_v <= 0) return {};
  try {
    return fmt::format(" (problem {})", echo(p));
  } catch (const std::exception&) {  // a problem too broken to describe is refused for what is
                                     // wrong with it
    return {};
  }
}

}  // namespace

std::string to_string(const Label& label) {
  return label.name.empty() ? std::string(label.kind)
                            : fmt::format("{} '{}'", label.kind, echo(label.name));
}

void ArgumentCheck::refuse(const std::string& message) const {
  throw Error(ErrorCode::invalid_argument,
              problem_ == nullptr ? message : message + descriptor(*problem_));
}

void ArgumentCheck::device(Device device) const {
  if (is_device(device)) return;
  refuse(fmt::format("device is {}; accepted are cpu and a GPU, as cuda:0", to_string(device)));
}

void ArgumentCheck::view(const Label& name, const Tensor& t) const {
  if (!t.given()) {
    refuse(fmt::format("{} is not given; accepted are tensors of 1 to {} dimensions",
                       to_string(name), kMaxRank));
  }
  if (t.rank < 1 || t.rank > kMaxRank) {
    refuse(fmt::format("{} has rank {}; accepted are 1 to {}", to_string(name), t.rank, kMaxRank));
  }
  const std::size_t size = size_of(t.dtype);
  if (size == 0) {
    refuse(fmt::format("{} has dtype {}; accepted are the enumerators of DType", to_string(name),
                       static_cast<int>(t.dtype)));
  }
  if (!is_device(device_)) {
    refuse(fmt::format("{} is {}; accepted are tensors on cpu and on a GPU, as cuda:0",
                       to_string(name), to_string(t)));
  }
  if (t.device != device_) {
    refuse(fmt::format("{} is {}; accepted are tensors on {}", to_string(name), to_string(t),
                       to_string(device_)));
  }
  if (!small(t)) {
    if (std::any_of(t.shape.begin(), t.shape.begin() + t.rank,
                    [](std::int64_t n) { return n < 0; })) {
      refuse(
          fmt::format("{} is {}; accepted are sizes of at least 0", to_string(name), to_string(t)));
    }
    if (!addressable(t, static_cast<std::int64_t>(size))) {
      refuse(fmt::format("{} is {}; accepted are sizes and strides that span at most 2^60 bytes",
                         to_string(name), to_string(t)));
    }
  }
  if (t.size() == 0) return;
  if (t.data == nullptr) {
    refuse(fmt::format("{} is {} with data null; accepted is null only without elements",
                       to_string(name), to_string(t)));
  }
  aligned(name, t);
}

void ArgumentCheck::aligned(const Label& name, const Tensor& t) const {
  const std::size_t size = size_of(t.dtype);  // a power of two
  if ((reinterpret_cast<std::uintptr_t>(t.data) & (size - 1)) != 0) {
    refuse(fmt::format("{} has data at address {}; accepted are multiples of {} bytes for {}",
                       to_string(name), fmt::ptr(t.data), size, attn::name(t.dtype)));
  }
}

void ArgumentCheck::tensor(const Label& name, const Tensor& t, DType dtype,
                           const Shape& shape) const {
  shaped(name, t, t.dtype == dtype, attn::name(dtype), shape);
}

void ArgumentCheck::integers(const Label& name, const Tensor& t, const Shape& shape) const {
  shaped(name, t, is_integer(t.dtype), "i32 or i64 ", shape);
}

void ArgumentCheck::shaped(const Label& name, const Tensor& t, bool is_dtype,
                           std::string_view dtypes, const Shape& shape) const {
  if (!t.given()) {
    refuse(
        fmt::format("{} is not given; accepted is {}", to_string(name), shape_text(dtypes, shape)));
  }
  view(name, t);
  const bool same_shape = static_cast<std::size_t>(t.rank) == shape.rank() &&
                          std::equal(shape.begin(), shape.end(), t.shape.begin(),
                                     [](std::int64_t want, std::int64_t got) {
                                       return want == kAnySize || want == got;
                                     });
  if (!is_dtype || !same_shape) {
    refuse(fmt::format("{} is {}; accepted is {}", to_string(name), to_string(t),
                       shape_text(dtypes, shape)));
  }
}

void ArgumentCheck::contiguous_rows(const Label& name, const Tensor& t) const {
  const auto last = static_cast<std::size_t>(t.rank - 1);
  if (t.shape[last] > 1 && t.strides[last] != 1 && t.size() > 0) {
    refuse(fmt::format("{} is {}; accepted is stride 1 in the last dimension", to_string(name),
                       to_string(t)));
  }
}

void ArgumentCheck::contiguous(const Label& name, const Tensor& t) const {
  if (!t.contiguous()) {
    refuse(fmt::format("{} is {}; accepted is a contiguous tensor", to_string(name), to_string(t)));
  }
}

void ArgumentCheck::not_given(const Label& name, const Tensor& t, std::string_view because) const {
  if (t.given() || t.data != nullptr) {
    refuse(fmt::format("{} is given but {}; accepted is none", to_string(name), because));
  }
}

void ArgumentCheck::disjoint(std::span<const NamedTensor> outputs,
                             std::span<const NamedTensor> inputs) const {
  // Most pairs lie apart, so that each tensor's bytes are found once.
  std::array<std::byte, 1024> stack;
  std::pmr::monotonic_buffer_resource memory(stack.data(), stack.size());
  std::pmr::vector<Bytes> bytes(&memory);
  bytes.reserve(outputs.size() + inputs.size());
  for (const NamedTensor& output : outputs) bytes.push_back(bytes_of(output.tensor));
  for (const NamedTensor& input : inputs) bytes.push_back(bytes_of(input.tensor));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Label& name = outputs[i].name;
    const Tensor& t = outputs[i].tensor;
    if (self_overlap(t)) {
      refuse(fmt::format("{} is {}; accepted are outputs whose elements do not share memory",
                         to_string(name), to_string(t)));
    }
    const auto refuse_if_shared = [&](const NamedTensor& other, const Bytes& bytes_of_other) {
      if (!bytes[i].apart(bytes_of_other) && overlap(t, other.tensor)) {
        refuse(fmt::format(
            "{} at address {} overlaps {} at address {}; accepted are outputs that "
            "share no memory with other arguments",
            to_string(name), fmt::ptr(t.data), to_string(other.name), fmt::ptr(other.tensor.data)));
      }
    };
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      refuse_if_shared(inputs[j], bytes[outputs.size() + j]);
    }
    for (std::size_t j = i + 1; j < outputs.size(); ++j) refuse_if_shared(outputs[j], bytes[j]);
  }
}

}  // namespace attn::core
