// The text of `struct Config`, which kernels are compiled for.
#pragma once

#include <string>
#include <string_view>

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
  std::string text() const { return text_ + "};\n"; }

 private:
  std::string text_;
};

}  // namespace attn::cuda
