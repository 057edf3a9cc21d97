#include "cuda/codegen/config_text.hpp"

#include <fmt/format.h>

namespace attn::cuda {

std::string_view element_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "BFloat16";
    case DType::f16:
      return "Float16";
    case DType::f32:
    case DType::f64:
    case DType::i64:
    case DType::i32:
    case DType::u8:
      return "Float32";
  }
  return {};
}

ConfigText::ConfigText(DType dtype)
    : text_(fmt::format("struct Config {{\n  using Element = {};\n", element_type(dtype))) {}

void ConfigText::constant(std::string_view type, std::string_view name, std::string_view value) {
  text_ += fmt::format("  static constexpr {} {} = {};\n", type, name, value);
}

}  // namespace attn::cuda
