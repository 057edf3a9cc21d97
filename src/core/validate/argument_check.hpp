// Refusals of tensor arguments, shared by every entry point.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "attn/problem.hpp"
#include "attn/tensor.hpp"

namespace attn::core {

inline constexpr std::int64_t kAnySize = -1;  // in an accepted shape

// What a message calls an argument: "q", or "buffer 'bias'" of {"buffer", "bias"}. It only looks at
// the text, so that a call that is not refused builds none.
struct Label {
  std::string_view kind;
  std::string_view name{};

  Label(std::string_view what, std::string_view of = {})  // NOLINT(google-explicit-constructor)
      : kind(what), name(of) {}
  Label(const char* what) : kind(what) {}         // NOLINT(google-explicit-constructor)
  Label(const std::string& what) : kind(what) {}  // NOLINT(google-explicit-constructor)
};
std::string to_string(const Label& label);

// Whether there may be such a device: the CPU has the index 0 alone.
inline bool is_device(Device device) noexcept {
  return device.type == DeviceType::cuda || device == Device{};
}

// Sizes that a tensor must have, kAnySize where any will do.
class Shape {
 public:
  Shape(std::initializer_list<std::int64_t> sizes) : rank_(sizes.size()) {
    std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  }
  explicit Shape(const Tensor& t) : sizes_(t.shape), rank_(static_cast<std::size_t>(t.rank)) {}
  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + rank_; }
  std::size_t rank() const { return rank_; }

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  std::size_t rank_;
};

// Looks at an argument, which must outlive it.
struct NamedTensor {
  Label name;
  const Tensor& tensor;
};

// Each check throws Error(invalid_argument): one sentence with the argument, its value and what is
// accepted, and the descriptor of the problem once the sizes that it needs are known.
class ArgumentCheck {
 public:
  // `problem` may be null and must outlive this. `device`: where all tensors must be.
  explicit ArgumentCheck(const Problem* problem = nullptr, Device device = {})
      : problem_(problem), device_(device) {}

  // Whether the values of tensors can be looked at.
  bool readable() const noexcept { return device_.type == DeviceType::cpu; }

  [[noreturn]] void refuse(const std::string& message) const;

  // is_device() of the device of a plan's options.
  void device(Device device) const;

  // Memory that can be addressed: rank, sizes that are not negative, number of elements and
  // distance between elements far below 2^63, data present and aligned to the element, on the
  // device.
  void view(const Label& name, const Tensor& t) const;
  // The address of data is a multiple of an element of the dtype, which is an enumerator.
  void aligned(const Label& name, const Tensor& t) const;
  // view() and exactly this dtype and shape.
  void tensor(const Label& name, const Tensor& t, DType dtype, const Shape& shape) const;
  // view(), i32 or i64, and exactly this shape.
  void integers(const Label& name, const Tensor& t, const Shape& shape) const;
  // The last dimension has stride 1.
  void contiguous_rows(const Label& name, const Tensor& t) const;
  void contiguous(const Label& name, const Tensor& t) const;
  void not_given(const Label& name, const Tensor& t, std::string_view because) const;
  // No output shares memory with itself, another output or an input. Those not given are skipped.
  void disjoint(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs) const;

 private:
  // is_dtype: t.dtype is one of `dtypes`, what a message calls those that are accepted.
  void shaped(const Label& name, const Tensor& t, bool is_dtype, std::string_view dtypes,
              const Shape& shape) const;

  const Problem* problem_;
  Device device_;
};

}  // namespace attn::core
