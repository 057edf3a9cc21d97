// Refusals of tensor arguments, shared by every entry point.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/problem.hpp"
#include "attn/tensor.hpp"

namespace attn::core {

inline constexpr std::int64_t kAnySize = -1;  // in an accepted shape

struct NamedTensor {
  std::string name;
  Tensor tensor;
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

  // Memory that can be addressed: rank, sizes that are not negative, number of elements and
  // distance between elements far below 2^63, data present and aligned to the element, on the
  // device.
  void view(std::string_view name, const Tensor& t) const;
  // view() and exactly this dtype and shape.
  void tensor(std::string_view name, const Tensor& t, DType dtype,
              const std::vector<std::int64_t>& shape) const;
  // The last dimension has stride 1.
  void contiguous_rows(std::string_view name, const Tensor& t) const;
  void contiguous(std::string_view name, const Tensor& t) const;
  void not_given(std::string_view name, const Tensor& t, std::string_view because) const;
  // No output shares memory with itself, another output or an input. Those not given are skipped.
  void disjoint(const std::vector<NamedTensor>& outputs,
                const std::vector<NamedTensor>& inputs) const;

 private:
  const Problem* problem_;
  Device device_;
};

}  // namespace attn::core
