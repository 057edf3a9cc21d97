// The text of `struct Config`, which kernels are compiled for.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/cache_type.hpp"
#include "attn/tensor.hpp"

namespace attn::cuda {

// The device's type of the elements of a tensor (src/cuda/device/ptx/math.cuh).
std::string_view element_type(DType dtype);
// Of e4m3 or e5m2.
std::string_view float8_element(CacheType type);

// One constant a call, in the order of the calls.
class ConfigText {
 public:
  explicit ConfigText(DType dtype);  // Element
  explicit ConfigText(std::string_view element);
  void type(std::string_view name, std::string_view value);
  void number(std::string_view name, int value) { constant("int", name, std::to_string(value)); }
  void flag(std::string_view name, bool value) { constant("bool", name, value ? "true" : "false"); }
  void constant(std::string_view type, std::string_view name, std::string_view value);

  std::string text() const;
  // The text with these constants alone: of a small kernel, which problems share that differ in
  // others. A constant that such a kernel reads beside these is an error of the compiler. Throws
  // Error(internal) for a name without a constant.
  std::string text_of(const std::vector<std::string_view>& names) const;

 private:
  std::vector<std::pair<std::string, std::string>> lines_;  // by names of constants
};

}  // namespace attn::cuda
